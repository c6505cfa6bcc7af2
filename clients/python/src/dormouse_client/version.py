"""The version of the library, which is that of the server it was made for."""

VERSION = "0.1.0"
