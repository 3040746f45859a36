// Placeholder so that the target exists until its first source does.
