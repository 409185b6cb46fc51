// go-flags.test.ts - Go's flag syntax, flanneld's flags and their environment variables.

import { describe, expect, it } from 'vitest'
import { applyEnvironment, describeFlags, HelpWanted, parseFlags, parseGoInt } from '../../../src/cli/go-flags.ts'
import { FLAGS, FLANNEL_FLAGS } from '../../../src/cli/options.ts'

const parse = (...args: string[]) => parseFlags(FLAGS, args)
const bad = (): void => {}

describe('Go flags', () => {
  it.each([['-iface', 'eth0'], ['--iface', 'eth0'], ['-iface=eth0'], ['--iface=eth0']])('reads %j %j', (...args) => {
    expect(parse(...args.filter((arg) => arg !== undefined)).options.iface).toEqual(['eth0'])
  })

  it('repeats lists, and the last of the others wins', () => {
    const { options } = parse('-iface', 'a', '-iface=b', '-etcd-prefix', '/x', '-etcd-prefix=/y')
    expect(options.iface).toEqual(['a', 'b'])
    expect(options['etcd-prefix']).toBe('/y')
  })

  it('takes no separate value for a boolean, and the value ends the flags', () => {
    const { options, rest } = parse('--version', 'false', '--v', '3')
    expect(options.version).toBe(true)
    expect(options.v).toBe(0)
    expect(rest).toEqual(['false', '--v', '3'])
    expect(parse('--version=false').options.version).toBe(false)
  })

  it('ends at -- and at the first other argument', () => {
    expect(parse('-v=1', '--', '-v=2').options.v).toBe(1)
    expect(parse('-v=1', '-', '-v=2').rest).toEqual(['-', '-v=2'])
  })

  it.each([
    ['0', 0], ['7', 7], ['-7', -7], ['+7', 7], ['0x1F', 31], ['0b101', 5], ['0o17', 15], ['017', 15], ['1_000', 1000],
    ['', undefined], ['x', undefined], ['1.5', undefined], ['08', undefined], ['1__0', undefined], ['0x', undefined], ['1e3', undefined],
  ])('reads the number %j as %j', (text, value) => {
    expect(parseGoInt(text)).toBe(value)
  })

  it.each([
    [['--nonsense'], 'flag provided but not defined: -nonsense'],
    [['-v', 'x'], 'invalid value "x" for flag -v: it takes a whole number'],
    [['--version=maybe'], 'invalid value "maybe" for flag -version: it takes true or false'],
    [['-iface'], 'flag needs an argument: -iface'],
    [['---v'], 'bad flag syntax: ---v'],
    [['-=x'], 'bad flag syntax: -=x'],
    [['--toString'], 'flag provided but not defined: -toString'],
  ])('refuses %j', (args, message) => {
    expect(() => parse(...args)).toThrow(message)
  })

  it.each(['-h', '-help', '--help'])('knows %s', (arg) => {
    expect(() => parse(arg)).toThrow(HelpWanted)
  })

  it.each(Object.keys(FLANNEL_FLAGS).filter((name) => name !== 'version'))('reads -%s from its variable', (name) => {
    const flag = FLANNEL_FLAGS[name as keyof typeof FLANNEL_FLAGS]
    const text = typeof flag.default === 'number' ? '77' : 'some-text'
    const variable = `FLANNELD_${name.toUpperCase().replaceAll('-', '_')}`
    const expected = typeof flag.default === 'number' ? 77 : Array.isArray(flag.default) ? [text] : text
    expect(applyEnvironment(FLAGS, parse(), 'FLANNELD', { [variable]: text }, bad)[name as 'v']).toEqual(expected)
    expect(applyEnvironment(FLAGS, parse(`-${name}=5`), 'FLANNELD', { [variable]: text }, bad)[name as 'v']).toEqual(
      typeof flag.default === 'number' ? 5 : Array.isArray(flag.default) ? ['5'] : '5',
    )
    expect(applyEnvironment(FLAGS, parse(), 'FLANNELD', { [variable]: '' }, bad)[name as 'v']).toEqual(flag.default)
  })

  it('names a bad variable and keeps the default', () => {
    const messages: string[] = []
    const options = applyEnvironment(FLAGS, parse(), 'FLANNELD', { FLANNELD_V: 'x' }, (message) => messages.push(message))
    expect(options.v).toBe(0)
    expect(messages).toEqual(['invalid value "x" for FLANNELD_V: it takes a whole number'])
  })

  it("describes flags as Go's PrintDefaults", () => {
    const text = describeFlags({ b: { default: false, help: 'one letter' }, name: { default: 'x', help: 'text' }, n: { default: 3, help: 'number' } })
    expect(text).toBe('  -b\tone letter\n  -n int\n    \tnumber (default 3)\n  -name string\n    \ttext (default "x")')
  })
})
