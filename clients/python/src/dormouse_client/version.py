"""Version of the library, which is that of the server that it was made for."""

VERSION = "0.1.0"
