"""What each kernel means, one noun a file; `kernels.reference` is the public face of this folder."""
