"""Small templates, each for some rule of Jinja or Python, and a generator of random ones."""

CONTEXT = {
    "n": 3,
    "neg": -7,
    "zero": 0,
    "big": 123456789012345678901234567890,
    "f": 2.5,
    "tiny": 1e-07,
    "huge": 1e16,
    "t": True,
    "no": False,
    "nil": None,
    "e": "",
    "s": "Hello World",
    "u": "Grüße, 世界 🌍",
    "sp": "  a b\tc\n d  ",
    "q": "it's \"quoted\" \\ \x00\x1f\x7f\u00a0\u200b",
    "lines": "one\ntwo\r\n\nthree\x0bfour\u2028five\n",
    "digits": "42",
    "l": [3, 1, 2],
    "ls": ["b", "A", "c", "a", "B"],
    "mixed": [1, "1", 1.0, None, True, [1], {"k": 1}],
    "el": [],
    "ed": {},
    "d": {"b": 1, "a": [1, 2, {"x": None}], "items": "shadow", "get": 0, "_p": 5, "A": 2.0},
    "ms": [
        {"role": "system", "content": "S", "n": 3},
        {"role": "user", "content": "Hi", "n": 1},
        {"role": "assistant", "content": None, "tool_calls": [{"f": {"name": "x"}}]},
        {"role": "user", "content": [{"type": "text", "text": "T"}], "n": 2},
    ],
    "nested": [[1, 2], [3, 4], [5, 6]],
}

SNIPPETS = []


def add(*sources):
    SNIPPETS.extend(sources)


def prints(*expressions):
    add(*("{{ " + e + " }}" for e in expressions))


# Printing
prints("n", "neg", "big", "f", "tiny", "huge", "t", "nil", "e", "s", "u", "q", "l", "ls", "mixed", "el", "ed", "d", "ms",
       "missing", "1.0", "100.0", "1e5", "1e15", "1e16", "1e17", "1.5e300", "1e-4", "1e-5", "0.1 + 0.2", "-0.0", "1e400", "-1e400",
       "1_000", "1_0.2_5", "'a' 'b' \"c\"", "'\\n\\t\\x41\\u00e9\\101\\\\\\'\\q'", "true", "True", "none", "None", "false",
       "(1,)", "()", "(1, 2)", "1, 2", "[1, [2, 'x']]", "{'a': 1, 2: 'b', none: 3}", "{1: 'a', 1.0: 'b', true: 'c'}",
       "range(3)", "range(1, 4)", "range(0, 10, 3)", "range(5, 0, -2)", "d.keys()", "d.values()", "d.items()", "namespace(a=1, b='x')",
       "namespace(d)", "dict(a=1, b=2)", "dict(d, z=1)", "dict([[1, 2], ['a', 'b']])", "dict(d.items())", "'%s' % q", "[q]", "[u]", "['\u00ad\u2028\ue000\U000e0001']")
# Arithmetic
prints("1 + 2", "1 - 2", "2 * 3", "7 / 2", "6 / 2", "7 // 2", "-7 // 2", "7 // -2", "7 % 3", "-7 % 3", "7 % -3", "-7 % -3",
       "2 ** 10", "2 ** 3 ** 2", "-2 ** 2", "1 / 0", "1 // 0", "1 % 0", "1.0 / 0", "1.5 % 0", "1.5 // 0", "7.5 // 2", "-7.5 // 2", "7.5 % 2",
       "-7.5 % 2", "7.5 % -2", "1e300 * 1e300", "f * 2", "f + n", "n - f", "n * 1.0", "t + t", "t * 3", "-t", "+t", "-f", "- -3", "-n", "+neg",
       "0.0 // 1", "-0.0 // 1", "5 % 0.3", "1e16 + 1", "-1 % 1e-300",
       "s + '!'", "s + n", "n + s", "s + nil", "nil + s", "s + l", "l + s", "l + l", "l + el", "l + (1,)", "(1,) + (2,)", "d + d", "n + nil", "nil + nil",
       "s - 1", "s * 2", "2 * s", "s * 0", "s * -1", "s * s", "l * 2", "2 * l", "l * f", "(1, 2) * 2", "d * 2", "-s", "+s", "-nil", "-l", "s / 2", "s // 2", "l % 2",
       "missing + 1", "1 + missing", "missing + missing", "-missing", "s + missing", "missing + s", "l + missing", "missing * 2", "missing.a", "missing['a']",
       "missing()", "missing[1:]", "missing ~ 'x'", "missing == missing", "missing == nil", "missing != 1", "missing < 1", "missing in l", "1 in missing",
       "missing in s", "not missing", "missing and 1", "missing or 2", "missing if missing else 'x'", "missing is defined", "ms[9].role", "ms[9]", "d.zzz", "d.zzz.y", "d['zzz']",
       "d[1]", "nil.x", "nil[0]", "nil['x']", "n.x", "n.x.y", "s.x.y", "s[99].y", "l[99].y", "l.x.y", "l['x'].y", "(1,)['x'].y", "d[nil].y", "d[1.5].y", "range(3)[5].y", "t.x.y", "f.x.y", "e[0].y")
# Comparison
prints("1 == 1.0", "1 == true", "true == 1.0", "'1' == 1", "'a' < 'b'", "'a' < 'B'", "'é' > 'z'", "1 < 2 < 3", "1 < 3 < 2", "3 > 2 >= 2 == 2.0", "l == [3, 1, 2]",
       "l < [3, 2]", "l < (1,)", "[1, 'a'] < [1, 2]", "[1, 'a'] < [2, 2]", "nil < 1", "nil == nil", "nil == false", "d == d", "d == {}", "d < d", "s < 1", "1 < s",
       "el == []", "ed == {}", "[] == ()", "(1, 2) == (1, 2)", "big > 1", "big == big", "big < 1e40", "big == 1.2345678901234568e29", "9007199254740993 == 9007199254740992.0",
       "1e400 > big", "{'a': 1, 'b': 2} == {'b': 2, 'a': 1}", "range(3) == range(3)", "range(0) == range(1, 1)", "1 != 2", "'x' != 'x'",
       "1 in l", "9 in l", "1.0 in l", "true in l", "'Hello' in s", "'' in s", "1 in s", "nil in s", "'b' in d", "1 in d", "l in d", "nil in d", "l in [l]", "'x' in nil", "'x' in n", "'a' not in s",
       "2 in range(3)", "5 in range(3)", "'b' in d.keys()", "1 in d.values()", "('b', 1) in d.items()", "'b' in d.zzz", "not 1 in l", "not (1 in l)", "1 in l and 2 in l", "'世' in u")
# Logic
prints("0 or 'x'", "1 and 'x'", "0 and x", "nil or el or 'z'", "not 0", "not not s", "not el == []", "1 if t", "1 if no", "1 if no else 2", "1 if no else 2 if no else 3", "(1 if t else 2) + 1",
       "1 if t else 2 if t else 3", "'a' if el else 'b' ~ 'c'", "true and not false", "s and l and d and 7", "(1 if no).x", "(1 if no) ~ 'x'")
# Concatenation
prints("1 ~ 2", "'a' ~ nil ~ 1.0 ~ true ~ l ~ d", "1 ~ 2 + 3", "1 + 2 ~ 3", "'a' + 'b' ~ 'c' + 'd'", "'a' ~ 'b' * 2", "'a' + 'b' + 'c' + 1", "'a' + ('b' + 'c') + 'd'", "1 + 2 + '3'", "'x' + 1 ~ 2",
       "s + ' ' + s + ' ' + s", "l + l + l", "'a' + 'b' + l", "1 + 1 + 1.5", "s + missing + s", "nil + 'a' + 'b'")
# Subscripts
prints("l[0]", "l[-1]", "l[3]", "l[true]", "l[1.0]", "l['0']", "l[nil]", "s[0]", "s[-1]", "u[2]", "u[-1]", "u[7]", "s['upper']()", "l[1:]", "l[:-1]", "l[::-1]", "l[::2]", "l[5:]", "l[-2:]", "l[2:0:-1]",
       "s[1:4]", "s[::-1]", "u[::-1]", "u[2:4]", "u[-3:]", "u[::2]", "u[:100]", "u[-100:3]", "s[:nil]", "s[nil:2]", "l[::0]", "(1, 2, 3)[1:]", "l.0", "ms.0.role", "ms[0]['role']", "ms[0].role", "ms[0]['content'][0]",
       "d.b", "d['b']", "d.items", "d['items']", "d.items()", "d['items']()", "d.get", "d['get']", "d.get('b')", "d._p", "d['_p']", "d.a[2].x", "d.a.2.x", "nested[1][0]", "nested[-1][-1]", "range(10)[2]", "range(10)[-1]", "d['a', 'b']",
       "l[1:][0]", "l[:]", "s[2:2]", "s[5:2]", "u[4:4]", "el[0:5]", "d[l]", "d[1:2]", "nil[1:2]", "n[1:2]", "[1, 2, 3, 4, 5][3:0:-2]", "'abcdef'[4:1:-1]", "'世界é'[1]", "'abc'[true]")
# Methods of strings
prints("s.upper()", "s.lower()", "s.title()", "s.capitalize()", "u.upper()", "u.lower()", "u.capitalize()", "'ǆ'.capitalize()", "\"they're bill's\".title()", "'x1y2'.title()", "sp.strip()", "sp.lstrip()", "sp.rstrip()", "s.strip('Hd')", "s.lstrip('eH')", "s.rstrip('dlx')", "s.strip('')",
       "s.strip(nil)", "s.strip(1)", "u.strip('G🌍')", "sp.split()", "sp.split(nil)", "sp.split(' ')", "sp.split(nil, 1)", "sp.split(maxsplit=1)", "sp.rsplit(nil, 1)", "sp.rsplit()", "s.split('o')", "s.split('o', 1)", "s.rsplit('o', 1)", "s.split('')", "s.split('zz')", "e.split()", "e.split(',')", "s.split(1)",
       "'a,b,,c'.split(',')", "'a,b,,c'.split(',', 0)", "'a,b,,c'.rsplit(',', 2)", "'aXbXc'.split(sep='X')", "' a  b '.rsplit(' ')", "'a b c'.split(' ', maxsplit=1)[-1]", "lines.splitlines()", "lines.splitlines(true)", "e.splitlines()", "'\\n'.splitlines()", "'a\\n\\nb'.splitlines()",
       "s.startswith('He')", "s.startswith('')", "s.startswith(('x', 'He'))", "s.startswith(['He'])", "s.startswith(1)", "s.startswith(nil)", "s.endswith('ld')", "s.endswith(('x', 'd'))", "e.startswith('a')", "s.replace('o', '0')", "s.replace('o', '0', 1)", "s.replace('', '-')", "'世a'.replace('', '-')", "s.replace('', '-', 2)", "s.replace('x', 'y')", "s.replace('l', '')",
       "s.replace('o')", "s.replace(1, 2)", "s.replace('o', '0', -1)", "s.replace('o', '0', 0)", "e.replace('', 'x')", "s.find('o')", "s.find('zz')", "u.find('世')", "s.rfind('o')", "s.index('W')", "s.index('zz')", "s.count('l')", "s.count('')", "u.count('')", "'aaaa'.count('aa')", "', '.join(ls)", "','.join([])", "','.join(s)", "','.join(l)", "','.join(mixed)", "','.join(d)", "','.join(1)", "','.join(nil)", "','.join(missing)",
       "', '.join(d.keys())", "'-'.join(('a', 'b'))", "s.isdigit()", "digits.isdigit()", "e.isdigit()", "'٣'.isalpha()", "s.isalpha()", "'abc'.isalpha()", "'世界'.isalpha()", "'a1'.isalnum()", "' \\t'.isspace()", "e.isspace()", "'ABC'.isupper()", "'A1'.isupper()", "'1'.isupper()", "s.isupper()", "'abc'.islower()", "s.removeprefix('Hello ')", "s.removeprefix('x')", "s.removesuffix('ld')", "s.partition(' ')", "s.partition('zz')", "s.rpartition('o')", "s.rpartition('zz')", "s.partition('')",
       "'{} {}'.format(1, 'a')", "'{0} {1} {0}'.format('x', none)", "'{a}-{b}'.format(a=1, b=l)", "'{{}} {}'.format(1.5)", "'{} {}'.format(1)", "'{x}'.format()", "'{!r}'.format('a')", "'{}'.format(missing)", "s.foo", "s.foo()", "s.foo is defined", "s.upper is defined", "s.upper is callable", "s.upper(1)", "s.strip(1, 2)", "s.lower().upper().title()", "n.upper()", "nil.strip()", "l.strip()", "l.append(1)", "d.update({})", "d.pop('b')", "l.append is defined", "l.append", "d.update", "l.sort()",
       "l.index(1)", "l.index(9)", "l.count(1)", "(1, 2, 1).count(1)", "(1, 2).index(2)", "l.copy()", "d.copy()", "d.get('zz')", "d.get('zz', 5)", "d.get('b', 5)", "d.get(l)", "d.get()", "d.get(1)", "d.get('b', default=1)", "d.items()|list", "d.keys()|list", "d.values()|list", "d.keys()|length", "d.items()|first", "d.items()[0]", "ed.items()|list", "d.items()|length", "d.keys()[0]", "d.keys().x")
# Percent
prints("'%s' % 1", "'%s %s' % (1, 'a')", "'%s' % (1,)", "'%s' % l", "'%s %s' % l", "'%d' % 3.7", "'%d' % 's'", "'%i' % true", "'%r' % 'a'", "'100%%' % ()", "'%s' % missing", "'%s' % ()", "'a' % 1", "'a' % []", "'a' % {}", "'a' % 'b'", "'%.2f' % 1.005", "'%.1f' % 2", "'%f' % f", "'%s' % nil", "'%s' % d", "'%d' % big", "'%d' % nil")
# Filters
prints("l|length", "s|length", "u|length", "d|length", "nil|length", "n|length", "missing|length", "range(5)|length", "el|count", "(l|map('string'))|length", "s|upper", "s|lower", "s|title", "s|capitalize", "n|upper", "nil|upper", "missing|upper", "\"it's a-b (c) [d]\"|title", "'äé ö-ü'|title",
       "sp|trim", "sp|trim('d ')", "n|trim", "missing|trim", "nil|trim", "s|trim('Hd')", "s|replace('o', '0')", "s|replace('o', '0', 1)", "n|replace(3, 4)", "l|replace(',', ';')", "s|replace('o')", "nil|replace('None', 'x')", "s|default('x')", "missing|default('x')", "missing|default", "missing|d('y')", "nil|default('x')", "nil|default('x', true)", "e|default('x', true)", "e|default('x', boolean=true)", "missing.x|default('x')", "d.zzz|default(1)", "0|default(5, true)",
       "l|join", "l|join(', ')", "ls|join('-')", "mixed|join('|')", "ms|join(',', attribute='role')", "ms|join(',', 'role')", "ms|join('|', attribute='content')", "s|join('.')", "d|join(',')", "nil|join", "missing|join(',')", "l|join(1)", "nested|join(';')", "(1, 2)|join", "l|first", "l|last", "s|first", "s|last", "u|last", "el|first", "el|last", "d|first", "d|last", "nil|first", "nil|last", "missing|first", "missing|last", "n|first", "(l|map('string'))|first", "(l|map('string'))|last", "range(4)|last", "el|first|default('none')",
       "l|list", "s|list", "u|list", "d|list", "range(3)|list", "nil|list", "missing|list", "n|list", "(1, 2)|list", "l|string", "nil|string", "missing|string", "d|string", "f|string", "'x'|string", "digits|int", "'4.7'|int", "'x'|int", "'x'|int(5)", "'x'|int(default=5)", "f|int", "-2.5|int", "(-2.5)|int", "nil|int", "nil|int(9)", "t|int", "l|int", "missing|int", "' 12 '|int", "'1_000'|int", "'-5'|int", "'+5'|int", "'1e3'|int", "e|int", "'inf'|int", "'nan'|int",
       "digits|float", "'x'|float", "'x'|float(1.5)", "'1e3'|float", "' 2.5 '|float", "n|float", "nil|float", "t|float", "missing|float", "'inf'|float", "'0x10'|float", "2.5|round", "3.5|round", "2.567|round(2)", "2.675|round(2)", "n|round", "1.25|round(1)", "-2.5|round", "(-2.5)|round", "s|round", "nil|round", "0.5|round", "1e20|round", "neg|abs", "f|abs", "(-2.5)|abs", "s|abs", "t|abs", "nil|abs", "missing|abs",
       "l|sort", "ls|sort", "ls|sort(case_sensitive=true)", "ls|sort(reverse=true)", "ls|sort(true)", "l|sort(reverse=true)", "mixed|sort", "ms|sort(attribute='role')|map(attribute='role')|list", "ms|sort(attribute='n')", "[nil, nil]|sort", "[nil, 1]|sort", "[{}, {}]|sort", "[missing, missing]|sort", "[{'a': 1}, {'a': 2}]|sort", "ms|sort(attribute='missing')|length", "{'a': nil, 'b': nil}|dictsort(by='value')", "[nil, nil]|min", "nested|sort(attribute=1, reverse=true)", "s|sort", "d|sort", "nil|sort", "missing|sort", "d|dictsort", "d|dictsort(true)", "{'b': 2, 'a': 3}|dictsort(by='value')", "{'b': 2, 'a': 3}|dictsort(reverse=true)", "d|dictsort(by='x')", "nil|dictsort", "l|dictsort", "missing|dictsort", "d|dictsort(by='value')",
       "ls|unique|list", "ls|unique(case_sensitive=true)|list", "mixed|unique|list", "[1, 1.0, true, 2]|unique|list", "ms|unique(attribute='role')|map(attribute='role')|list", "l|reverse|list", "s|reverse", "u|reverse", "d|reverse|list", "range(3)|reverse|list", "(l|map('string'))|reverse", "nil|reverse", "n|reverse", "missing|reverse|list", "l|reverse|length", "(l|reverse)[0]", "d.items()|reverse|list", "(1, 2)|reverse|list",
       "l|max", "l|min", "ls|max", "ls|min", "ls|min(case_sensitive=true)", "el|max", "mixed|max", "nested|max(attribute=0)", "ms|map(attribute='n')|list", "nil|max", "l|sum", "el|sum", "ls|sum", "nested|sum(attribute=1)", "l|sum(start=10)", "nested|sum(start=[])", "ls|sum(start='')", "nil|sum", "missing|sum",
       "l|map('string')|list", "ls|map('upper')|list", "ls|map('replace', 'a', 'x')|join", "ms|map(attribute='role')|list", "ms|map(attribute='zz')|list", "ms|map(attribute='n', default=0)|list", "ms|map(attribute='n', default=none)|list", "nested|map('first')|list", "nested|map(attribute=0)|list", "nested|map('sum')|list", "ms|map(attribute='content.0.text')|list", "ms|map(attribute='tool_calls.0.f.name')|list", "nil|map('upper')|list", "missing|map('upper')|list", "n|map('upper')|list", "l|map('upper')|first", "s|map('upper')|join", "mixed|map('length')|first", "l|map|list", "l|map('length')|list",
       "l|select('odd')|list", "l|select|list", "[0, 1, '', 'a', none]|select|list", "[0, 1, '', 'a', none]|reject|list", "mixed|select('string')|list", "mixed|reject('string')|list", "mixed|select('number')|list", "l|select('gt', 1)|list", "l|select('>', 1)|list", "l|select('in', [1, 2])|list", "mixed|select('none')|list", "mixed|reject('none')|list", "ls|select('odd')|list", "ms|selectattr('role', 'equalto', 'user')|list", "ms|selectattr('role', '==', 'user')|map(attribute='content')|list", "ms|selectattr('tool_calls')|list|length", "ms|selectattr('tool_calls', 'defined')|list|length", "ms|rejectattr('role', 'in', ['user', 'system'])|map(attribute='role')|join",
       "ms|selectattr('content', 'none')|list|length", "ms|selectattr('content', 'string')|map(attribute='content')|list", "ms|selectattr('n', 'gt', 1)|list", "ms|selectattr('content.0.type', 'eq', 'text')|list|length", "ms|selectattr|list", "nil|selectattr('x')|list", "'yes' if ms|selectattr('role', 'eq', 'zz') else 'no'", "'yes' if ms|selectattr('role', 'eq', 'zz')|list else 'no'", "ms|selectattr('role', 'eq', 'user')|first", "ms|selectattr('role', 'eq', 'zz')|first", "(ms|selectattr('role', 'eq', 'zz')|first).content", "ms|selectattr('zz', 'undefined')|list|length",
       "d|items|list", "nil|items|list", "missing|items|list", "l|items|list", "d|items|first", "ed|items|list", "s|indent", "'a\\nb\\n\\nc'|indent", "'a\\nb\\n\\nc'|indent(2)", "'a\\nb\\n\\nc'|indent(2, true)", "'a\\nb\\n\\nc'|indent(2, blank=true)", "'a\\nb'|indent('> ')", "'a\\nb'|indent(first=true)", "lines|indent(1)", "nil|indent", "missing|indent", "n|indent", "e|indent(2, true)", "'a\\n'|indent", "'a\\nb'|indent(width=0)", "'<a href=\"x\">&\\'</a>'|escape", "'<'|e|e", "'<'|safe", "'<'|e ~ '<'", "('<'|e)|length", "'<b>'|e|string", "('<'|e) == '&lt;'", "'<'|e|tojson",
       "'a%sb'|format('x')", "'%s %d'|format('x', 2)", "'%s'|format", "nil|format")
# JSON
prints("n|tojson", "f|tojson", "tiny|tojson", "huge|tojson", "big|tojson", "t|tojson", "nil|tojson", "s|tojson", "u|tojson", "q|tojson", "u|tojson(ensure_ascii=true)", "q|tojson(true)", "l|tojson", "el|tojson", "ed|tojson", "d|tojson", "ms|tojson", "mixed|tojson", "(1, 2)|tojson", "missing|tojson", "[missing]|tojson", "d.items()|tojson", "range(3)|tojson", "namespace(a=1)|tojson", "d|tojson(indent=2)", "d|tojson(indent=0)", "d|tojson(indent=-1)", "ms|tojson(indent=4)", "d|tojson(indent='\\t')", "d|tojson(none, 2)", "el|tojson(indent=2)", "[[], {}, [1]]|tojson(indent=1)",
       "d|tojson(separators=(',', ':'))", "d|tojson(indent=2, separators=(', ', ' : '))", "d|tojson(sort_keys=true)", "{'b': 1, 'a': 2}|tojson(sort_keys=true)", "{1: 2, 'a': 3}|tojson(sort_keys=true)", "{1: 'a', none: 'b', true: 'c', 1.5: 'd', (1, 2): 'e'}|tojson", "{1: 'a', none: 'b', 2.5: 'd'}|tojson", "{true: 1, false: 2}|tojson", "1e400|tojson", "-1e400|tojson", "'\\x7f\\x80\\u2028'|tojson", "'\\b\\f\\n\\r\\t\\x01'|tojson", "'</script>'|tojson", "d|tojson|tojson", "d|tojson|safe", "s.upper|tojson", "l|map('string')|tojson", "d|tojson(foo=1)", "d|tojson(indent=1.5)", "{'x': 1.0, 'y': 100000000000000000000.0}|tojson", "[0.1, -0.0, 1e-10, 123456.789]|tojson")
# Tests
for value in ["n", "f", "t", "nil", "e", "s", "l", "el", "d", "missing", "range(2)", "d.items()", "(1,)", "s.upper", "range", "namespace()", "l|map('string')", "big", "'<'|e"]:
    prints(*(f"({value}) is {test}" for test in ["defined", "undefined", "none", "string", "number", "integer", "float", "boolean", "true", "false", "mapping", "sequence", "iterable", "callable", "escaped"]))
prints("3 is odd", "4 is odd", "4 is even", "f is even", "s is odd", "nil is odd", "t is odd", "9 is divisibleby 3", "9 is divisibleby(2)", "9 is divisibleby 0", "1 is eq 1", "1 is equalto 2", "1 is ne 2", "1 is lt 2", "1 is gt 2", "1 is ge 1", "1 is le 0", "1 is in l", "1 is not in l", "'x' is in s", "s is not string", "not s is string", "n is not none and s is string", "nil is sameas none", "t is sameas true", "1 is sameas true", "s is lower", "'abc' is lower", "'ABC' is upper", "'123' is upper", "nil is upper", "1 is == 1", "x is defined and x", "x is not defined or y", "ms is iterable and ms is not mapping", "1 is lessthan 2", "2 is greaterthan 1", "s is string is true", "l[0] is odd", "-1 is odd", "not n is odd", "1 is none == false", "nil is none and 1", "1 is in [1] == true", "n is number(1)", "1 is divisibleby")
# Functions
prints("range(3)|list", "range(0)|list", "range(2, 5)|list", "range(5, 2, -1)|list", "range(1, 2, 0)", "range()", "range('a')", "range(1.5)", "range(nil)", "range(100000)|length", "range(100001)", "range(-5)|list", "range(n)|sum", "dict()", "dict(1)", "dict(d)|tojson", "namespace().x", "namespace(x=1).x", "namespace(x=1)['x']", "namespace({'y': 2}).y", "namespace(_x=1)._x", "raise_exception('no')", "raise_exception(1)", "raise_exception()", "raise_exception('a' ~ n)", "raise_exception(message='m')", "s()", "n()", "nil()", "l(1)", "strftime_now('%Y-%m-%d')", "strftime_now('%d %b %Y')", "strftime_now('%A, %B %d, %H:%M:%S %p %I %y %j %%')", "strftime_now('%-d/%-m/%e')", "strftime_now('%a %F %T %D %R %h')", "strftime_now()", "strftime_now(1)", "range is defined", "dict is callable", "range(*[1, 4])|list", "dict(**d)['A']", "dict(a=1, **{'b': 2})")
# Statements
add("{% if n %}a{% endif %}", "{% if nil %}a{% else %}b{% endif %}", "{% if nil %}a{% elif n == 3 %}b{% elif n %}c{% else %}d{% endif %}", "{% if missing %}a{% endif %}b", "{% if 1, %}tuple{% endif %}",
    "{% for x in l %}{{ x }},{% endfor %}", "{% for x in el %}{{ x }}{% else %}none{% endfor %}", "{% for x in nil %}{% endfor %}", "{% for x in missing %}x{% else %}e{% endfor %}", "{% for x in n %}{% endfor %}", "{% for x in s %}{{ x }}.{% endfor %}", "{% for x in u %}{{ x }}.{% endfor %}", "{% for k in d %}{{ k }}{% endfor %}", "{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}", "{% for k, v in d|items %}{{ k }}={{ v }};{% endfor %}", "{% for k, v in d|dictsort %}{{ k }}{% endfor %}",
    "{% for a, b in nested %}{{ a + b }} {% endfor %}", "{% for a, b, c in nested %}{% endfor %}", "{% for a, in nested %}{% endfor %}", "{% for a, b in l %}{% endfor %}", "{% for a, b in ['xy', 'zw'] %}{{ b }}{{ a }}{% endfor %}", "{% for (a, b), c in [[[1, 2], 3]] %}{{ a }}{{ b }}{{ c }}{% endfor %}", "{% for x in 1, 2, 3 %}{{ x }}{% endfor %}", "{% for x in range(3) %}{{ x }}{% endfor %}", "{% for x in [] if x %}{% else %}empty{% endfor %}",
    "{% for x in l if x > 1 %}{{ loop.index }}/{{ loop.length }}:{{ x }} {% endfor %}", "{% for m in ms if m.role == 'user' %}{{ loop.first }}{{ loop.last }} {% endfor %}", "{% for x in l %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.depth }}{{ loop.depth0 }} {% endfor %}", "{% for x in l %}{{ loop.previtem }}<{{ x }}>{{ loop.nextitem }} {% endfor %}", "{% for x in l %}{{ loop.previtem.x }}{% endfor %}", "{% for x in l %}{{ loop.nextitem.x }}{% endfor %}", "{% for x in l %}{{ loop.previtem is defined }}{% endfor %}", "{% for x in l %}{{ loop.cycle('a', 'b') }}{% endfor %}", "{% for x in [1, 1, 2] %}{{ loop.changed(x) }}{% endfor %}", "{% for x in l %}{{ loop }}{% endfor %}", "{% for x in l %}{{ loop['index'] }}{% endfor %}", "{% for x in l %}{{ loop.foo }}{% endfor %}", "{% for x in l %}{{ loop.foo.x }}{% endfor %}", "{% for x in l %}{{ loop(x) }}{% endfor %}", "{{ loop }}", "{{ loop.index }}",
    "{% for x in l %}{% for y in l %}{{ loop.index }}{% endfor %}{{ loop.index }}|{% endfor %}", "{% for x in l %}{% set outer = loop %}{% for y in l %}{{ outer.index }}{{ loop.index }} {% endfor %}{% endfor %}", "{% for x in l %}{% if loop.first %}{% continue %}{% endif %}{{ x }}{% endfor %}", "{% for x in l %}{% if x == 1 %}{% break %}{% endif %}{{ x }}{% endfor %}", "{% for x in l %}{% continue %}{% else %}else{% endfor %}", "{% for x in l %}{% break %}{% else %}else{% endfor %}", "{% for x in l %}{% if x == 2 %}{% break %}{% endif %}{% else %}else{% endfor %}", "{% for x in l %}{% for y in l %}{% if y == 1 %}{% break %}{% endif %}{{ y }}{% endfor %}{{ x }}{% endfor %}",
    "{% for x in l|select('odd') %}{{ loop.length }}{{ loop.last }}{{ x }}{% endfor %}", "{% set g = l|map('string') %}{{ g|list }}{{ g|list }}", "{% set g = l|map('string') %}{{ g|first }}{% for x in g %}{{ x }}{% endfor %}", "{% set ns = namespace(stop=false) %}{% for x in l if not ns.stop %}{{ x }}{% set ns.stop = true %}{% endfor %}", "{% set ns = namespace(stop=false) %}{% for x in l if not ns.stop %}{{ x }}{{ loop.last }}{% set ns.stop = true %}{% endfor %}", "{% for x in l %}{{ x }}{% set x = 9 %}{{ x }}{% endfor %}{{ x }}", "{% set x = 1 %}{% for y in l %}{{ x }}{% set x = y %}{{ x }}{% endfor %}{{ x }}", "{% for x in l if x is odd and loop %}{{ x }}{% endfor %}", "{% for x in l if x == n %}{{ x }}{% endfor %}", "{% for a, b in nested if a > 1 %}{{ loop.previtem }}{{ a }}{% endfor %}",
    "{% set x = 5 %}{{ x }}", "{% set x, y = 1, 2 %}{{ x }}{{ y }}", "{% set x, y = [1, 2] %}{{ x }}{{ y }}", "{% set x, y = 'ab' %}{{ y }}{{ x }}", "{% set x, y = 1 %}", "{% set x, y = [1] %}", "{% set x, y = [1, 2, 3] %}", "{% set x = 1, 2 %}{{ x }}", "{% set (x, y) = (1, 2) %}{{ x }}", "{% set x %}a{{ n }}{% endset %}[{{ x }}]", "{% set x | upper %}abc{% endset %}{{ x }}", "{% set x | replace('a', 'b') | trim %} aca {% endset %}{{ x }}", "{% set x = 1 %}{% if t %}{% set x = 2 %}{% endif %}{{ x }}", "{% if no %}{% set n = 2 %}{% endif %}{{ n }}", "{% if t %}{% set n = 2 %}{% endif %}{{ n }}", "{{ n }}{% set n = n + 1 %}{{ n }}", "{% for x in l %}{% if no %}{% set n = 2 %}{% endif %}{{ n }}{% endfor %}", "{% for x in l %}{% if loop.first %}{% set n = 2 %}{% endif %}{{ n }}{% endfor %}{{ n }}", "{% for x in l %}{{ n }}{% set n = n + 1 %}{{ n }} {% endfor %}",
    "{% set ns = namespace(x=1) %}{% for y in l %}{% set ns.x = ns.x + y %}{% endfor %}{{ ns.x }}", "{% set ns = namespace() %}{{ ns.x }}{% set ns.x = 1 %}{{ ns.x }}{{ ns.y is defined }}", "{% set d.x = 1 %}", "{% set missing.x = 1 %}", "{% set ns = namespace() %}{% set ns.x %}block{% endset %}{{ ns.x }}", "{% set ns = namespace(a=1) %}{% set ns.items = 2 %}{{ ns.items }}{{ ns }}", "{% set ns = namespace(a=1) %}{{ ns['a'] }}{{ ns.b.c }}", "{% set ns.x = 1/0 %}",
    "{% macro m() %}hi{% endmacro %}{{ m() }}", "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1) }}{{ m() }}{{ m(a=2) }}", "{% macro m(a, b=2) %}{{ a }}{{ b }}{% endmacro %}{{ m(1) }}{{ m(1, 3) }}{{ m(b=4, a=5) }}", "{% macro m(a) %}{{ a.x }}{% endmacro %}{{ m() }}", "{% macro m(a) %}{% endmacro %}{{ m(1, 2) }}", "{% macro m(a) %}{% endmacro %}{{ m(b=2) }}", "{% macro m(a) %}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1, 2, 3, x=4) }}", "{% macro m(a=n) %}{{ a }}{% endmacro %}{{ m() }}", "{% macro m(a, b=a) %}{{ a }}{{ b }}{% endmacro %}{{ m(1) }}", "{% macro m() %}{{ n }}{% endmacro %}{% set n = 5 %}{{ m() }}", "{% set n = 4 %}{% macro m() %}{{ n }}{% endmacro %}{{ m() }}{% set n = 5 %}{{ m() }}", "{% macro m() %}{% set n = 9 %}{{ n }}{% endmacro %}{{ m() }}{{ n }}", "{% macro m() %}{{ n }}{% endmacro %}{{ m() }}{% set n = 5 %}", "{% macro m(x) %}{% if x > 0 %}{{ x }}{{ m(x - 1) }}{% endif %}{% endmacro %}{{ m(5) }}", "{% macro a() %}{{ b() }}{% endmacro %}{% macro b() %}B{% endmacro %}{{ a() }}", "{% macro m() %}x{% endmacro %}{{ m }}", "{% macro m() %}x{% endmacro %}{{ m() ~ m()|upper }}", "{% macro m() %}x{% endmacro %}{{ m is defined }}{{ m is callable }}", "{{ m() }}{% macro m() %}x{% endmacro %}", "{% macro m(a) %}[{{ a }}]{% endmacro %}{% for x in l %}{{ m(x) }}{% endfor %}", "{% for x in l %}{% macro m() %}{{ x }}{% endmacro %}{{ m() }}{% endfor %}", "{% macro m() %}{% for x in l %}{{ x }}{{ loop.index }}{% endfor %}{% endmacro %}{{ m() }}", "{% for x in l %}{% macro m() %}{{ loop.index }}{% endmacro %}{{ m() }}{% endfor %}", "{% if no %}{% macro m() %}x{% endmacro %}{% endif %}{{ m }}", "{% macro m(a, a2=1) %}{{ a ~ a2 }}{% endmacro %}{{ m(*[7, 8]) }}{{ m(**{'a': 3}) }}", "{% macro m(caller=1) %}{{ caller }}{% endmacro %}{{ m() }}",
    "{% macro m() %}<{{ caller() }}>{% endmacro %}{% call m() %}body{{ n }}{% endcall %}", "{% macro m() %}{{ caller(1) }}{{ caller(2) }}{% endmacro %}{% call(x) m() %}[{{ x }}]{% endcall %}", "{% macro m() %}{{ caller() }}{% endmacro %}{{ m() }}", "{% macro m() %}x{% endmacro %}{% call m() %}b{% endcall %}", "{% macro m() %}{{ caller is defined }}{% endmacro %}{{ m() }}", "{% call range() %}{% endcall %}", "{% macro m() %}{{ kwargs }}{% endmacro %}{% call m(a=1) %}{% endcall %}", "{% generation %}a{{ n }}{% endgeneration %}", "{% generation %}{% set n = 9 %}{{ n }}{% endgeneration %}{{ n }}", "{% for x in l %}{% generation %}{{ x }}{{ loop.index }}{% endgeneration %}{% endfor %}", "{% filter upper %}abc{{ n }}{% endfilter %}", "{% filter replace('a', 'b')|upper %}aca{% endfilter %}", "{% filter indent(2) %}a\nb{% endfilter %}", "{% filter upper %}{% set n = 9 %}{{ n }}{% endfilter %}{{ n }}", "{% with x = 1 %}{{ x }}{% endwith %}{{ x }}", "{% with x = n, y = x %}{{ x }}{{ y }}{% endwith %}", "{% with %}{% set n = 9 %}{{ n }}{% endwith %}{{ n }}", "{% with (a, b) = (1, 2) %}{{ a }}{{ b }}{% endwith %}",
    "{% set x %}{% for i in l %}{{ i }}{% endfor %}{% endset %}{{ x }}", "{% for i in l %}{% set x %}{% if i == 1 %}{% break %}{% endif %}{{ i }}{% endset %}{{ x }}{% endfor %}", "{% set g = 5 %}{% set x %}{% set g = 6 %}{{ g }}{% endset %}{{ x }}{{ g }}", "{% raw %}{{ x }}{% y %}{% endraw %}", "a{%- raw -%} {{ }} {%- endraw -%} b", "{# c #}a{#- c -#} b", "{{ 'a' }}\n{{ 'b' }}\n", "a\n{% if t %}\nb\n{% endif %}\nc\n", "  {% if t %}  \n  b  \n  {% endif %}  \nc", "a {%- if t -%} b {%- endif -%} c", "a\n  {%+ if t %}b{% endif +%}\nc", "\r\na\r{% if t %}\r\nb{% endif %}", "{{ '{{' }} {{ '%}' }}", "{{ {'a': {'b': 1}}['a'] }}", "{{ {'a': {'b': {}}} }}", "{ { a } } {% if t %}}{% endif %}", "{% if t %}\n\n x{% endif %}\n\n", "{# a #}\n{# b #}\nx", "x{# a #}\n  {# b #}  \ny", "  {{- n -}}  x", "\n\n  {%- if t %} x {%- endif %}\n\n y", "{% for x in l -%}\n {{ x }}\n{%- endfor %}", "{% for x in l: %}{{ x }}{% endfor %}", "{%if t%}x{%endif%}", "{{n}}{{-n-}}{{ n}}", "{{ 'a\nb' }}", "{{ \"a\" 'b' }}", "{{ - n }}", "{{ n|string|length }}", "{{ -n|abs }}", "{{ (-n)|abs }}", "{{ 1if t else 2 }}", "{{ [1,2,] }}{{ {'a':1,} }}{{ (1,2,) }}", "{{ not n }}", "{{ l|join(',')|upper ~ '!' }}", "{{ s|lower|title|replace('o', '0') }}", "{{ l is iterable and l|length > 2 }}", "{{ 'x' if s is string and s|length else 'y' }}", "{{ (l|first) + 1 }}", "{{ l|map('int')|sum + 1 }}", "{{ ms[0].role|upper ~ ':' ~ ms[0]['content'] }}")
# Errors of syntax
add("{% if %}{% endif %}", "{% if t %}", "{% endif %}", "{% for x l %}{% endfor %}", "{{ }}", "{{ 1 + }}", "{{ (1 }}", "{{ 1) }}", "{{ [1 }}", "{{ 'a }}", "{% foo %}", "{% set %}", "{% set 1 = 2 %}", "{% set true = 2 %}", "{% macro %}{% endmacro %}", "{% macro m(a=1, b) %}{% endmacro %}", "{# a", "{% raw %}", "{{ a b }}", "{{ a is defined is none }}", "{{ a.}}", "{{ a..b }}", "{{ a[] }}", "{{ a.'b' }}", "{{ f(a=1, 2) }}", "{{ 1 is }}", "{{ a | }}", "{% for loop in l %}{% endfor %}", "{% for x in l %}{% set loop = 1 %}{% endfor %}", "{% break %}", "{% continue %}", "{% endfor %}", "{% else %}", "{{ a = 1 }}", "{{ $ }}", "{{ a ? b : c }}", "{{ a && b }}", "{{ !a }}", "{% if t %}{% endfor %}", "{{ n", "{% if t", "{{ {1} }}", "{{ {'a' 1} }}", "{% call 1 %}{% endcall %}", "{% call s %}{% endcall %}", "{% macro m() %}{% break %}{% endmacro %}", "{{ x is defined if y }}", "{{ x is defined if y else z }}", "{{ 007 }}", "{{ 1__0 }}", "{{ a.1b }}", "{% set x.y.z = 1 %}", "{% for x.y in l %}{% endfor %}", "{% endmacro m %}", "{% macro m() %}{% endmacro m %}", "{{ '\\x4' }}", "{{ '\\u12' }}", "{% if t %}{% else %}{% else %}{% endif %}", "{% if t %}{% else %}{% elif n %}{% endif %}", "{% set x = %}", "{% for x in %}{% endfor %}", "{% with x %}{% endwith %}", "{% filter %}{% endfilter %}", "{{ (1, 2 }}", "{{ a[1:2:3:4] }}", "{{ ~ n }}", "{{ * n }}", "{{ not }}", "{{ n not l }}", "{{ n in }}", "{{ 1 2 }}", "{{ 'a' n }}", "{{ n 'a' }}", "{{ ...}}", "{{ n;n }}", "{{ {{n}} }}", "{%%}", "{% %}", "{% 1 %}", "{% 'x' %}")

# Random snippets

ATOMS = ["n", "neg", "zero", "f", "tiny", "t", "no", "nil", "e", "s", "u", "sp", "digits", "l", "ls", "el", "d", "ed", "ms", "nested", "mixed", "missing", "ms[0]", "ms[1].content", "d.a", "1", "0", "2.5", "'a'", "'Hello'", "[]", "[1, 'x']", "{'a': 1}", "(1, 2)", "range(3)", "true", "none", "s[0]", "l[-1]", "ms[2].tool_calls", "big"]
BINARY = ["+", "-", "*", "/", "//", "%", "~", "==", "!=", "<", "<=", ">", ">=", "in", "not in", "and", "or"]
FILTERS = ["length", "upper", "lower", "title", "capitalize", "trim", "string", "list", "int", "float", "first", "last", "join", "join(',')", "join('-', attribute='role')", "default('D')", "default('D', true)", "tojson", "tojson(indent=2)", "tojson(sort_keys=true)", "sort", "sort(reverse=true)", "reverse", "reverse|list", "unique|list", "map('string')|list", "map('upper')|join", "map(attribute='role')|list", "select|list", "reject|list", "select('string')|list", "select('number')|list", "selectattr('role')|list", "selectattr('role', 'equalto', 'user')|list", "rejectattr('n')|list", "sum", "min", "max", "abs", "round", "items|list", "dictsort", "replace('a', 'b')", "indent(2)", "escape|string", "count"]
TESTS = ["defined", "undefined", "none", "string", "number", "integer", "float", "boolean", "true", "false", "mapping", "sequence", "iterable", "callable", "odd", "even", "lower", "upper", "in l", "in s", "eq(n)", "gt(1)", "divisibleby(3)"]
METHODS = [".upper()", ".lower()", ".strip()", ".split()", ".split('l')", ".rsplit('o', 1)", ".startswith('H')", ".endswith('d')", ".replace('l', 'L')", ".items()", ".keys()|list", ".get('a')", ".get('zz', 7)", ".find('o')", ".count('l')", ".title()", ".role", ".content", ".a", ".items", "['role']", "[0]", "[-1]", "[1:]", "[:2]", "[::-1]", "[1:5:2]", ".splitlines()", ".index('l')", ".isdigit()", ".join(ls)", ".x.y"]


def random_expression(rng, depth):
    kind = rng.random()
    if depth <= 0 or kind < 0.15:
        return rng.choice(ATOMS)
    inner = lambda: random_expression(rng, depth - 1)
    if kind < 0.40:
        return f"({inner()} {rng.choice(BINARY)} {inner()})"
    if kind < 0.60:
        return f"{inner()}|{rng.choice(FILTERS)}"
    if kind < 0.68:
        return f"({inner()} is {rng.choice(['', 'not '])}{rng.choice(TESTS)})"
    if kind < 0.86:
        return f"({inner()}){rng.choice(METHODS)}"
    if kind < 0.90:
        return f"({inner()} if {inner()} else {inner()})"
    if kind < 0.93:
        return f"(not {inner()})"
    if kind < 0.96:
        return f"[{inner()}, {inner()}]"
    if kind < 0.98:
        return f"({inner()})[{inner()}]"
    return f"{{'k': {inner()}, {inner()}: 1}}"


NAMES = ["x", "y", "n", "l"]


def random_statement(rng, depth):
    kind = rng.random()
    body = lambda: "".join(random_statement(rng, depth - 1) for _ in range(rng.randint(1, 2)))
    if depth <= 0 or kind < 0.35:
        return "{{ " + rng.choice(NAMES + [random_expression(rng, 1)]) + " }}" + rng.choice(["", " ", "\n", ";"])
    if kind < 0.55:
        return "{% set " + rng.choice(NAMES) + " = " + random_expression(rng, 1) + " %}"
    if kind < 0.70:
        e = "{% else %}" + body() if rng.random() < 0.4 else ""
        e = "{% elif " + random_expression(rng, 1) + " %}" + body() + e if rng.random() < 0.3 else e
        return "{% if " + random_expression(rng, 1) + " %}" + body() + e + "{% endif %}"
    if kind < 0.85:
        test = " if " + random_expression(rng, 1) if rng.random() < 0.3 else ""
        e = "{% else %}" + body() if rng.random() < 0.3 else ""
        control = rng.choice(["", "", "{% if loop.first %}{% continue %}{% endif %}", "{% if x == 2 %}{% break %}{% endif %}", "{{ loop.index }}{{ loop.last }}"])
        return "{% for " + rng.choice(NAMES) + " in " + rng.choice(["l", "ls", "ms", "s", "d", "el", "nested", "range(3)", random_expression(rng, 1)]) + test + " %}" + control + body() + e + "{% endfor %}"
    if kind < 0.93:
        name = rng.choice(["m1", "m2"])
        params = rng.choice(["", "x", "x, y=n", "n=1"])
        return "{% macro " + name + "(" + params + ") %}" + body() + "{% endmacro %}{{ " + name + "(" + rng.choice(["", "1", "l", "x=2"]) + ") }}"
    if kind < 0.96:
        return "{% set " + rng.choice(NAMES) + " %}" + body() + "{% endset %}"
    if kind < 0.98:
        return "{% with " + rng.choice(NAMES) + " = " + random_expression(rng, 1) + " %}" + body() + "{% endwith %}"
    return rng.choice(["{% generation %}", ""]) and "{% generation %}" + body() + "{% endgeneration %}" or "{% filter upper %}" + body() + "{% endfilter %}"


def random_snippet(rng):
    if rng.random() < 0.5:
        return "{{ " + random_expression(rng, rng.randint(1, 3)) + " }}"
    return "".join(random_statement(rng, 3) for _ in range(rng.randint(1, 4)))
