# Two commands do all set-up: `make demo` shows Bulkhead at work, `make test`
# runs the tests. The rest is listed by `make help`.
SHELL := /bin/bash
OUT = $(if $(CARGO_TARGET_DIR),$(CARGO_TARGET_DIR),target)/x86_64-unknown-linux-gnu/release
RUN = export PATH="$$(tools/setup $(1) | tail -n 1):$$PATH"

.PHONY: help demo build test test-full fuzz test-mutants docs install install-c clean

help:
	@echo "make demo          bring up two tenants, attack, crash, share, translate, plant a breach, clean up; says what it shows"
	@echo "make build         build every program in release form"
	@echo "make test          formatting, lints, docs, unit, property, model and end-to-end tests, short benches, a little fuzzing"
	@echo "make test-full     the same and what is long"
	@echo "make fuzz          hostile input from libFuzzer, a minute a target; TARGET=one of fuzz/README.md, SECONDS=so long each"
	@echo "make test-mutants  take each guard out and see a test go red"
	@echo "make docs          the book, into out/book"
	@echo "make install       programs and the library of rings to /usr/local/lib/bulkhead, units to /etc/systemd/system; below DESTDIR"

demo: build
	@$(OUT)/bulkhead demo

build:
	@$(call RUN,build) && cargo build --release --locked --workspace --bins && cargo xtask preload

test:
	@$(call RUN,test) && cargo xtask test

test-full:
	@$(call RUN,test) && cargo xtask test --full

fuzz:
	@$(call RUN,test) && cargo xtask fuzz $(if $(TARGET),--target $(TARGET)) $(if $(SECONDS),--seconds $(SECONDS))

test-mutants:
	@$(call RUN,test) && cargo xtask mutants

docs:
	@$(call RUN,test) && cargo xtask book

PROGRAMS = bulkhead $(addprefix bulkhead-,keeper supervisor controller switch fabric auditor verifier solver vhost operator proxy)

# Builds nothing, for it runs as root: `make build` comes first, as whoever you are.
install:
	@test -x $(OUT)/bulkhead || { echo "run \`make build\` first"; exit 1; }
	install -d $(addprefix $(DESTDIR),/usr/local/lib/bulkhead /usr/local/bin /usr/local/share/man/man1 /usr/local/lib/sysctl.d /etc/systemd/system)
	install -m 755 $(addprefix $(OUT)/,$(PROGRAMS)) $(DESTDIR)/usr/local/lib/bulkhead/
	install -m 644 $(OUT)/libbulkhead_preload.so $(DESTDIR)/usr/local/lib/bulkhead/
	$(OUT)/bulkhead man $(DESTDIR)/usr/local/share/man/man1
	ln -sf ../lib/bulkhead/bulkhead $(DESTDIR)/usr/local/bin/bulkhead
	ln -sf ../lib/bulkhead/bulkhead $(DESTDIR)/usr/local/bin/bulkhead-oci
	install -m 644 packaging/systemd/*.service $(DESTDIR)/etc/systemd/system/
	install -m 644 packaging/sysctl/*.conf $(DESTDIR)/usr/local/lib/sysctl.d/

# The library for C, built by `cargo build --release --locked -p lib-c`.
install-c:
	@test -f $(OUT)/libbulkhead_c.a || { echo "run \`cargo build --release --locked -p lib-c\` first"; exit 1; }
	install -d $(addprefix $(DESTDIR)/usr/local/,lib/pkgconfig include)
	install -m 644 $(OUT)/libbulkhead_c.a $(DESTDIR)/usr/local/lib/libbulkhead.a
	install -m 644 lib/c/bulkhead.h $(DESTDIR)/usr/local/include/
	sed -e 's|@prefix@|/usr/local|' -e 's|@version@|0.1.0|' lib/c/bulkhead.pc.in > $(DESTDIR)/usr/local/lib/pkgconfig/bulkhead.pc

clean:
	cargo clean
