"""JSON Web Encryption in the compact form (RFC 7516), read-only: the format of encrypted files of KServe 0.20."""
