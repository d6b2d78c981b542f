"""Models made of other models: plan, checks, execution."""
