"""Runs test cases of CPython's own suites, and says of each what became of it.

`cpython.py NAME...`: modules, packages, classes or single tests, under `test.`; `@FILE` has
one on each line. Each class runs in a process of its own, a few at a time; a class that takes
longer than two minutes is killed, and the test that ran is said to hang."""
import os, select, signal, sys, tempfile, time, unittest
import unittest.suite

AT_ONCE, LONGEST = 4, 120

class Said(unittest.TestResult):
    """One line at each test's beginning and end."""
    def __init__(self, out):
        super().__init__(); self.out = out; self.bad = None
    def say(self, what, test, why=''):
        os.write(self.out, f'{what} {test.id()} {why}\n'.encode(errors='replace'))
    def startTest(self, test):
        super().startTest(test); self.bad = None; self.say('begins', test)
    def spoilt(self, test, error):
        lines = str(error[1]).splitlines() or ['']
        self.bad = f'{error[0].__name__}: {lines[0]}'
        if not hasattr(test, '_testMethodName'):
            self.say('failed', test, self.bad)  # A class or module that cannot be set up.
    def addError(self, test, error): self.spoilt(test, error)
    def addFailure(self, test, error): self.spoilt(test, error)
    def addUnexpectedSuccess(self, test): self.bad = 'unexpected success'
    def addSubTest(self, test, part, error):
        if error: self.spoilt(test, error)
    def addSkip(self, test, why):
        if hasattr(test, '_testMethodName'): self.bad = self.bad or f'skipped: {why}'
        else: self.say('failed', test, f'skipped: {why}')
    def stopTest(self, test):
        super().stopTest(test)
        self.say('failed' if self.bad else 'passed', test, self.bad or '')

def flat(suite):
    for one in suite:
        yield from flat(one) if isinstance(one, unittest.suite.BaseTestSuite) else [one]

def run(tests, out):
    os.setsid()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        os.environ['TMPDIR'] = tempfile.tempdir = folder
        suite = unittest.TestSuite(tests)
        try: suite.run(Said(out))
        finally: os.chdir('/')

def main():
    from test import support
    support.use_resources = []  # Nothing beyond this machine, and nothing that takes minutes.
    loader, by_class = unittest.defaultTestLoader, {}
    names = []
    for name in sys.argv[1:]:
        names += open(name[1:]).read().split() if name.startswith('@') else [name]
    for test in flat(loader.loadTestsFromNames([f'test.{name}' for name in names])):
        if test.id().startswith('unittest.loader._FailedTest'):
            sys.exit(f'{test.id()} cannot be loaded')
        by_class.setdefault(f'{type(test).__module__}.{type(test).__qualname__}', []).append(test)
    todo, going = list(by_class.items()), {}
    while todo or going:
        while todo and len(going) < AT_ONCE:
            name, tests = todo.pop(0)
            read, write = os.pipe()
            pid = os.fork()
            if pid == 0:
                os.close(read)
                null = os.open(os.devnull, os.O_RDWR)
                os.dup2(null, 0)
                if 'VERBOSE' not in os.environ: os.dup2(null, 1); os.dup2(null, 2)
                try: run(tests, write)
                finally: os._exit(0)
            os.close(write)
            going[read] = (pid, time.monotonic(), [])
        ready, _, _ = select.select(list(going), [], [], 0.5)
        for read, (pid, since, text) in list(going.items()):
            over = time.monotonic() - since > LONGEST
            part = os.read(read, 1 << 16) if read in ready else None
            if part: text.append(part)
            if part == b'' or over:
                os.close(read); del going[read]
                try: os.killpg(pid, signal.SIGKILL)
                except ProcessLookupError: pass
                os.waitpid(pid, 0)
                tell(b''.join(text).decode(errors='replace'), time.monotonic() - since)

def tell(text, took):
    open_ = None
    for line in text.splitlines():
        what, test, *why = line.split(' ', 2)
        if what == 'begins': open_ = test
        else:
            open_ = None
            print(what, test.removeprefix('test.'), *why)
    if open_: print('failed', open_.removeprefix('test.'), f'hangs ({took:.0f} s)')
    sys.stdout.flush()

main()
