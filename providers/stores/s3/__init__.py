"""Amazon S3, and services with its protocol: `credentials` finds the credentials, `store` sends the requests."""
