"""Files for docker-compose.yml: the settings of its servers, and the passwords."""
