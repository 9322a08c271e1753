"""What docker-compose.yml needs beside images: settings of its servers, and passwords."""
