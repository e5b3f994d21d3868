"""Amazon S3, and what speaks its protocol: `credentials` finds who we are, `store` makes the requests."""
