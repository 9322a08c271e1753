"""Files of docker-compose.yml: settings of its servers, and passwords."""
