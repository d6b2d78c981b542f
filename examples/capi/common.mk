# What the Makefiles of the examples share. PYTHON is the environment in which repoagent-capi is installed.
PYTHON ?= python3
CFLAGS ?= -O2
WARNINGS := -std=c99 -Wall -Wextra -pedantic -Werror
OUT ?= .

$(OUT)/$(NAME): main.c
	$(CC) $(WARNINGS) $(CFLAGS) $$($(PYTHON) -m repoagent_capi --cflags) $< -o $@ $$($(PYTHON) -m repoagent_capi --libs)

.PHONY: clean
clean:
	rm -f $(OUT)/$(NAME)
