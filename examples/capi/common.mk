# What the Makefiles of the examples share. PYTHON is the environment in which repoagent-capi is installed.
PYTHON ?= python3
CFLAGS ?= -O2
WARNINGS := -std=c99 -Wall -Wextra -pedantic -Werror
OUT ?= .
BUILD := pip install . ./capi --config-settings cmake.define.WITH_C_API=ON

$(OUT)/$(NAME): main.c | api
	$(CC) $(WARNINGS) $(CFLAGS) $$($(PYTHON) -m repoagent_capi --cflags) $< -o $@ $$($(PYTHON) -m repoagent_capi --libs)

.PHONY: api clean
api:
	@$(PYTHON) -c 'import sys; from repoagent_capi import INCLUDE; \
	sys.exit(None if (INCLUDE / "repoagent").is_dir() else "repoagent-capi lacks its small C API; from a checkout: $(BUILD)")'

clean:
	rm -f $(OUT)/$(NAME)
