"""Files used by docker-compose.yml: the configuration of its servers, and the code that generates their passwords."""
