/* A shared library that knows nothing of Lathe. */
int answer(void) { return 42; }
