"""Step time and peak memory of private training, tfdp's and its peers'. See README.md."""
