// long-functions.test.ts - lint:native finds each function of C++ code that is too long, and nothing else.

import { expect, it } from 'vitest'
import { longFunctions } from '../../../scripts/long-functions.mjs'

const BODY = '  step();\n  step();\n'

it.each([
  ['a function', `int run(int a) {\n${BODY}}\n`],
  ['a member function of a class', `class A {\n public:\n  void run() const override {\n${BODY}  }\n};\n`],
  ['a constructor', `A::A(int a)\n    : a_(a) {\n${BODY}}\n`],
  ['a lambda', `int a = f([&](int b) {\n${BODY}});\n`],
  ['a function with braces in literals and comments', `char run() {\n  // {\n  f("{", '{');\n${BODY}}\n`],
  ['a function behind a number with separators', `constexpr int kMost = 1'000, kLeast = 1'0;\nint run() {\n${BODY}}\n`],
])('finds %s of four lines if three are allowed', (_what, code) => {
  const [found, ...more] = longFunctions(code, 3)
  expect([found?.lines, more]).toEqual([code.includes('// {') ? 6 : 4, []])
  expect(longFunctions(code, found!.lines)).toEqual([])
})

it.each([
  ['a namespace', `namespace a {\n${BODY}}\n`],
  ['a class template', `template <typename T>\nclass A {\n${BODY}};\n`],
  ['a struct behind an access specifier', `class B {\n private:\n  struct A {\n${BODY}  };\n};\n`],
  ['a list of values', 'int all[] = {\n  1,\n  2,\n};\n'],
])('does not count %s', (_what, code) => {
  expect(longFunctions(code, 3)).toEqual([])
})
