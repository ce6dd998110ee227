/* The JSON line reader of the example engines: what it reads, what it refuses, and that no bytes lead it out of its line. */
#include "engine.h"

static int failed;

static void check(int ok, const char *what)
{
	if (!ok) {
		fprintf(stderr, "FAIL: %s\n", what);
		failed = 1;
	}
}

static void reads_a_command(void)
{
	static const char line[] = "{ \"cmd\":\"grant\", \"n\":7 ,\"id\":\"r \\\"1\\\"\",\"blocks\":[0, 65535 ,2],\"params\":{\"a\":[[1,\"]}\"],{}]},\"handshake\":\"00ffab\"}";
	struct field f[FIELDS_MAX];
	char text[16];
	uint8_t bytes[3];
	uint32_t blocks[3];
	uint64_t number = 0;
	int n = json_fields(line, strlen(line), f);
	check(n == 6, "six keys");
	check(json_string(json_find(f, n, "cmd"), text, sizeof text) && strcmp(text, "grant") == 0, "a string");
	check(json_number(json_find(f, n, "n"), &number) && number == 7, "a number");
	check(json_string(json_find(f, n, "id"), text, sizeof text) && strcmp(text, "r \"1\"") == 0, "an escaped string");
	check(json_blocks(json_find(f, n, "blocks"), blocks, 3) == 3 && blocks[0] == 0 && blocks[1] == 65535 && blocks[2] == 2, "block ids");
	check(json_blocks(json_find(f, n, "blocks"), blocks, 2) == -1, "more block ids than there is room for");
	const struct field *params = json_find(f, n, "params");
	check(params != NULL && params->value_len == strlen("{\"a\":[[1,\"]}\"],{}]}"), "a nested value, passed on whole");
	check(hex_decode(json_find(f, n, "handshake"), bytes, sizeof bytes) == 3 && bytes[1] == 0xff && bytes[2] == 0xab, "hex");
	check(hex_decode(json_find(f, n, "handshake"), bytes, 2) == -1, "more hex than there is room for");
	check(json_find(f, n, "absent") == NULL && !json_number(NULL, &number) && !json_string(NULL, text, sizeof text), "an absent key");
	check(!json_string(json_find(f, n, "cmd"), text, 5), "a string that is one byte too long");
}

static void refuses_what_is_not_one_object(void)
{
	static const char *const wrong[] = {
		"", "grant", "[1]", "{", "{\"a\"}", "{\"a\":}", "{\"a\":1", "{\"a\":1,}", "{\"a\":1}x", "{a:1}", "{\"a:1}", "{\"a\":[1}",
		"{\"a\":[[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]]}",
		"{\"a\":1,\"b\":1,\"c\":1,\"d\":1,\"e\":1,\"f\":1,\"g\":1,\"h\":1,\"i\":1,\"j\":1,\"k\":1,\"l\":1,\"m\":1,\"n\":1,\"o\":1,\"p\":1,\"q\":1}",
	};
	struct field f[FIELDS_MAX];
	for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
		check(json_fields(wrong[i], strlen(wrong[i]), f) == -1, wrong[i]);
}

/* Mutated commands in buffers of their exact size: the address sanitizer sees each step out of the line. */
static void stays_in_its_line(unsigned seed)
{
	static const char *const seeds[] = {
		"{\"cmd\":\"grant\",\"n\":7,\"id\":\"r1\",\"blocks\":[0,1, 2],\"tokens\":48}",
		"{\"cmd\":\"track\",\"id\":\"r\\\"1\",\"params\":{\"a\":[[1,2],[{}]],\"b\":\"x\\\\\",\"c\":null}}",
		"{ \"cmd\" : \"engine\" , \"engine_id\":\"P\",\"handshake\":\"00ffab\" }",
	};
	static const char alphabet[] = "{}[]\",:\\019af \t-.n";
	unsigned long accepted = 0;
	printf("seed %u\n", seed);
	srand(seed);
	for (int round = 0; round < 200000; round++) {
		const char *from = seeds[rand() % 3];
		size_t len = strlen(from);
		char line[128];
		memcpy(line, from, len);
		for (int i = rand() % 5; i > 0 && len > 0; i--) {
			size_t at = (size_t)rand() % len;
			if (rand() % 3 == 0)
				len = at;
			else
				line[at] = rand() % 2 ? alphabet[(size_t)rand() % (sizeof alphabet - 1)] : (char)rand();
		}
		char *exact = malloc(len > 0 ? len : 1);
		if (exact == NULL)
			die("no memory");
		memcpy(exact, line, len);
		struct field f[FIELDS_MAX];
		int n = json_fields(exact, len, f);
		accepted += n >= 0;
		for (int i = 0; i < n; i++) {
			char text[8];
			uint64_t number;
			uint32_t blocks[2];
			uint8_t bytes[2];
			json_string(&f[i], text, sizeof text);
			json_number(&f[i], &number);
			json_blocks(&f[i], blocks, 2);
			hex_decode(&f[i], bytes, sizeof bytes);
			check(f[i].value >= exact && f[i].value + f[i].value_len <= exact + len, "a value inside the line");
		}
		free(exact);
	}
	check(accepted > 1000, "mutations that are still commands");
}

int main(int argc, char **argv)
{
	reads_a_command();
	refuses_what_is_not_one_object();
	stays_in_its_line(argc > 1 ? (unsigned)strtoul(argv[1], NULL, 10) : 1);
	return failed;
}
