// text.test.ts - escapes characters that steer a terminal or mislead readers.

import { describe, expect, it } from 'vitest'
import { jsonLine, parseToShow, printable, printableLines } from '../../../src/base/text.ts'

/** The characters that must not reach a terminal, except line breaks and tabs. */
const STEERING = [
  ...Array.from({ length: 32 }, (_, code) => code).filter((code) => ![9, 10, 13].includes(code)),
  ...Array.from({ length: 33 }, (_, at) => 0x7f + at),
  0x61c,
  0x200e,
  0x200f,
  0x2028,
  0x2029,
  0x202a,
  0x202b,
  0x202c,
  0x202d,
  0x202e,
  0x2066,
  0x2067,
  0x2068,
  0x2069,
  0xfeff,
  0xd800,
  0xdc00,
  0xdfff,
  0xad,
  0x200b,
  0x200c,
  0x200d,
  0x2060,
  0x2064,
  0xfff9,
  0xfffb,
  0x115f,
  0x180e,
  0x3164,
  0xfe0f,
].map((code) => String.fromCharCode(code))

describe('an untrusted text', () => {
  it.each(STEERING.map((letter) => [letter.charCodeAt(0).toString(16), letter]))('has no U+%s', (code, letter) => {
    const escaped = `a\\u${code.padStart(4, '0')}b`
    expect(printable(`a${letter}b`)).toBe(escaped)
    expect(printableLines(`a${letter}b`)).toBe(escaped)
    expect(JSON.parse(jsonLine({ [letter]: [letter] }))).toEqual({ [letter]: [letter] })
    expect(jsonLine({ [letter]: [letter] })).not.toContain(letter)
    expect(parseToShow(JSON.stringify({ [letter]: [`a${letter}b`] }))).toEqual({ [escaped.slice(1, -1)]: [escaped] })
  })

  it.each([
    [0xe0001, String.raw`\udb40\udc01`],
    [0xe0041, String.raw`\udb40\udc41`],
    [0xe007f, String.raw`\udb40\udc7f`],
    [0xe0100, String.raw`\udb40\udd00`],
    [0x1d173, String.raw`\ud834\udd73`],
  ])('has no character %i, which is two UTF-16 units', (code, escaped) => {
    const letter = String.fromCodePoint(code)
    expect(printable(`a${letter}b`)).toBe(`a${escaped}b`)
    expect(jsonLine([letter])).toBe(`["${escaped}"]\n`)
    expect(JSON.parse(jsonLine([letter]))).toEqual([letter])
  })

  it('has no line break', () => {
    expect(printable('a\tb\nc\r\nd')).toBe(String.raw`a\tb\nc\r\nd`)
    expect(parseToShow('{"a\\n":"b\\n"}')).toEqual({ [String.raw`a\n`]: String.raw`b\n` })
  })

  it('keeps its meaning as JSON, also in names', () => {
    const json = '[null,1,true,"a",{},[["b"]],{"c":null,"__proto__":2}]'
    expect(JSON.stringify(parseToShow(json))).toBe(json)
    expect(parseToShow('{"a":1,"b\\u001b":[{"c\\n":2}],"d":3}')).toEqual({
      a: 1,
      [String.raw`b\u001b`]: [{ [String.raw`c\n`]: 2 }],
      d: 3,
    })
  })

  it('keeps its line breaks, but no carriage return within a line', () => {
    expect(printableLines('a\tb\nc\r\nd\re')).toBe('a\tb\nc\r\nd\\re')
  })

  it('is unchanged if it has only ordinary characters', () => {
    const text = String.raw`"Zürich" 東京 😀 <b>\n</b> ‐ – 'x'`
    expect(printable(text)).toBe(text)
  })
})
