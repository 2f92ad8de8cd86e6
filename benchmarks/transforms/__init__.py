"""Which JAX transforms give right numbers for which op, in segops and in what it is compared to."""
