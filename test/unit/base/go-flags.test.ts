// go-flags.test.ts - the syntax of Go's flags, and environment variables.

import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { WeftError } from '../../../src/base/errors.ts'
import {
  applyEnvironment,
  describeFlags,
  flagHint,
  HelpWanted,
  nameIn,
  parseFlags,
  parseGoInt,
  unknownVariables,
} from '../../../src/base/go-flags.ts'
import { Secret } from '../../../src/base/secret.ts'
import { FLAGS } from '../../../src/options.ts'

const parse = (...args: string[]) => parseFlags(FLAGS, args)

describe('Go flags', () => {
  it.each([['-iface', 'eth0'], ['--iface', 'eth0'], ['-iface=eth0'], ['--iface=eth0']])('parses %j %j', (...args) => {
    expect(parse(...args.filter((arg) => arg !== undefined)).options.iface).toEqual(['eth0'])
  })

  it('collects repeated lists, and the last of other values wins', () => {
    const { options } = parse('-iface', 'a', '-iface=b', '-etcd-prefix', '/x', '-etcd-prefix=/y')
    expect(options.iface).toEqual(['a', 'b'])
    expect(options['etcd-prefix']).toBe('/y')
  })

  it('takes no separate value for a boolean', () => {
    const { options, rest } = parse('--version', 'false', '--v', '3')
    expect(options.version).toBe(true)
    expect(options.v).toBe(0)
    expect(rest).toEqual(['false', '--v', '3'])
    expect(parse('--version=false').options.version).toBe(false)
  })

  it('ends at -- and at the first argument that is not a flag', () => {
    expect(parse('-v=1', '--', '-v=2')).toMatchObject({ options: { v: 1 }, rest: ['-v=2'] })
    expect(parse('-v=1', '-', '-v=2').rest).toEqual(['-', '-v=2'])
  })

  it.each([
    ['0', 0],
    ['7', 7],
    ['-7', -7],
    ['+7', 7],
    ['0x1F', 31],
    ['0b101', 5],
    ['0o17', 15],
    ['017', 15],
    ['1_000', 1000],
    ['', undefined],
    ['x', undefined],
    ['1.5', undefined],
    ['08', undefined],
    ['1__0', undefined],
    ['0x', undefined],
    ['1e3', undefined],
  ])('parses the number %j as %j', (text, value) => {
    expect(parseGoInt(text)).toBe(value)
  })

  it.each([
    [['--nonsense'], 'flag provided but not defined: -nonsense'],
    [['-v', 'x'], 'invalid value "x" for flag -v: it takes a whole number'],
    [['--version=maybe'], 'invalid value "maybe" for flag -version: it takes true or false'],
    [['-iface'], 'flag needs an argument: -iface'],
    [['---v'], 'bad flag syntax: ---v'],
    [['-=x'], 'bad flag syntax: -=...'],
    [['---etcd-password=x'], 'bad flag syntax: ---etcd-password=...'],
    [['--toString'], 'flag provided but not defined: -toString'],
  ])('refuses %j', (args, message) => {
    expect(() => parse(...args)).toThrow(expect.objectContaining({ code: 'USAGE', message, remedy: 'see --help' }))
  })

  it.each([
    ...['1', 't', 'T', 'true', 'TRUE', 'True'].map((text) => [text, true] as const),
    ...['0', 'f', 'F', 'false', 'FALSE', 'False'].map((text) => [text, false] as const),
  ])('parses the boolean %s as %s', (text, value) => {
    for (const given of [true, false])
      expect(parseFlags({ x: { default: given, help: '' } }, [`-x=${text}`]).options.x).toBe(value)
  })

  it.each([
    ['-password=sesame', '-password=...'],
    ['--password=a=b\nc', '--password=...'],
    ['-v', '-v'],
    ['word-x=y', 'word-x=y'],
  ])('hides the value in %j: %s', (word, shown) => {
    expect(nameIn(word)).toBe(shown)
  })

  it.each(['-h', '-help', '--help'])('accepts %s', (arg) => {
    expect(() => parse(arg)).toThrow(HelpWanted)
  })

  it('reports an invalid variable, and keeps the default', () => {
    const messages: string[] = []
    const options = applyEnvironment(FLAGS, parse(), 'FLANNELD', { FLANNELD_V: 'x' }, (message) =>
      messages.push(message),
    )
    expect(options.v).toBe(0)
    expect(messages).toEqual(['invalid value "x" for FLANNELD_V: it takes a whole number'])
  })

  it('uses variables for flags that were not given', () => {
    const environment = { FLANNELD_IFACE: 'a', FLANNELD_IP_MASQ: 't', FLANNELD_ETCD_PREFIX: '', FLANNELD_V: '7' }
    const options = applyEnvironment(FLAGS, parse('-v=3'), 'FLANNELD', environment, (message) =>
      expect.unreachable(message),
    )
    expect(options).toEqual({ ...parse('-v=3').options, iface: ['a'], 'ip-masq': true })
  })

  it("describes flags as Go's PrintDefaults", () => {
    const text = describeFlags({
      b: { default: false, help: 'one letter' },
      bb: { default: false, help: 'two letters' },
      name: { default: 'x', help: 'text' },
      n: { default: 3, help: 'number' },
      on: { default: true, help: 'truth' },
      zero: { default: 0, help: 'no number', placeholder: 'seconds' },
      none: { default: '', help: 'no text' },
      list: { default: [], help: 'texts' },
      url: { default: new Secret('y'), help: 'secret' },
    })
    expect(text).toBe(
      [
        '  -b\tone letter',
        '  -bb\n    \ttwo letters',
        '  -list value\n    \ttexts',
        '  -n int\n    \tnumber (default 3)',
        '  -name string\n    \ttext (default "x")',
        '  -none string\n    \tno text',
        '  -on\n    \ttruth (default true)',
        '  -url string\n    \tsecret (default "<hidden>")',
        '  -zero seconds\n    \tno number',
      ].join('\n'),
    )
  })
})

describe('flagHint', () => {
  const hint = (error: unknown): Promise<string> => flagHint(error, FLAGS)
  const errorOf = (...args: string[]): unknown => {
    try {
      return parse(...args)
    } catch (error) {
      return error
    }
  }

  it('names the flag that an unknown flag resembles', async () => {
    expect(await hint(errorOf('-ifaec', 'eth0'))).toBe('; did you mean --iface?')
    expect(await hint(errorOf('--subnet-fille=x'))).toBe('; did you mean --subnet-file?')
    expect(await hint(errorOf('--nothing-like-it'))).toBe('')
  })

  it('is empty for any other error', async () => {
    expect(await hint(errorOf('-iface'))).toBe('')
    expect(await hint(new Error('flag provided but not defined: -ifaec'))).toBe('')
    expect(await hint(new WeftError('USAGE', 'ifaec: flag provided but not defined: -'))).toBe('')
    expect(await hint('flag provided but not defined: -ifaec')).toBe('')
  })
})

describe('unknownVariables', () => {
  it('lists the variables with the prefix that set no flag', () => {
    const environment = {
      FLANNELD_IFACE: 'eth0',
      FLANNELD_SUBNET_FILE: '/x',
      FLANNELD_SUBNETFILE: '/x',
      FLANNELD_EMPTY: '',
      FLANNELD: 'x',
      FLANNELDX: 'x',
      MY_FLANNELD_: 'x',
      HOME: '/root',
      MISSING: undefined,
    }
    expect(unknownVariables(FLAGS, 'FLANNELD', environment)).toEqual(['FLANNELD_SUBNETFILE'])
  })
})

describe('parseGoInt', () => {
  const bases = [
    ['', 10],
    ['0x', 16],
    ['0X', 16],
    ['0o', 8],
    ['0', 8],
    ['0b', 2],
  ] as const
  it('parses numbers of each base and sign', () => {
    fc.assert(
      fc.property(
        fc.maxSafeNat(),
        fc.constantFrom(...bases),
        fc.constantFrom('', '-', '+'),
        (number, [prefix, base], sign) => {
          expect(parseGoInt(sign + prefix + number.toString(base)) === (sign === '-' ? -number : number)).toBe(true)
        },
      ),
    )
  })

  it('refuses numbers that JavaScript accepts and Go does not', () => {
    for (const text of [
      ' 1',
      '1 ',
      '1.0',
      '1e1',
      'Infinity',
      'NaN',
      '0x',
      '_1',
      '1_',
      '9007199254740993',
      '--1',
      '٣',
    ]) {
      expect(parseGoInt(text), text).toBeUndefined()
    }
  })
})
