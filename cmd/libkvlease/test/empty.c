/* A library that is no core: see load_test.c. */
int kvl_test_empty(void);
int kvl_test_empty(void) { return 0; }
