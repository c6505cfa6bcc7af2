"""What a library must do, a file for each part of the contract."""
