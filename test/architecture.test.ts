// architecture.test.ts - the allowed imports in src/ and native/: folders depend on each other in one direction, and pure files do no I/O.

import { readdirSync, readFileSync } from 'node:fs'
import { dirname, join, relative } from 'node:path'
import { describe, expect, it } from 'vitest'
import { isPure, PURE } from './support/pure-files.ts'

const root = join(import.meta.dirname, '..')
const source = join(root, 'src')

/** The parts of src/, and the other parts that each may import. Type imports count. */
const ALLOWED: Readonly<Record<string, readonly string[]>> = {
  base: ['native'],
  net: [],
  'options.ts': ['base', 'net'],
  'path/catalog.ts': ['base'],
  host: ['native', 'base', 'net'],
  'control/config': ['base', 'net', 'path/catalog.ts', 'path/backends/fabric/template.ts'],
  'control/store': ['base', 'host'],
  'control/lease': ['base', 'net', 'host', 'control/config', 'control/store'],
  'control/kube': ['base', 'net', 'host', 'control/config', 'control/lease'],
  'path/engine': ['native', 'base', 'net', 'path/catalog.ts', 'host'],
  'path/contract.ts': ['base', 'net', 'path/catalog.ts', 'host', 'control/config', 'control/lease', 'path/engine'],
  'path/sums.ts': ['path/contract.ts'],
  'path/device': ['base', 'net', 'path/catalog.ts', 'host', 'control/lease', 'path/remains.ts'],
  'path/tunnel': [
    'base',
    'net',
    'path/catalog.ts',
    'host',
    'control/config',
    'control/lease',
    'path/engine',
    'path/contract.ts',
    'path/sums.ts',
    'path/device',
  ],
  'path/backends/fabric/template.ts': ['base', 'net', 'path/catalog.ts'],
  'path/backends': [
    'base',
    'net',
    'path/catalog.ts',
    'path/backends/fabric/template.ts',
    'host',
    'control/config',
    'control/lease',
    'path/engine',
    'path/contract.ts',
    'path/sums.ts',
    'path/device',
    'path/tunnel',
  ],
  'path/remains.ts': [],
  'path/firewall/flannel-rules.ts': ['net'],
  'path/firewall': ['base', 'net', 'host', 'path/remains.ts', 'path/firewall/flannel-rules.ts'],
  report: ['base', 'net', 'path/catalog.ts', 'host'],
  'node/restart': ['base', 'net', 'options.ts', 'path/catalog.ts', 'host', 'control/lease', 'path/engine'],
  node: [
    'base',
    'net',
    'options.ts',
    'path/catalog.ts',
    'host',
    'control/config',
    'control/lease',
    'path/engine',
    'path/contract.ts',
    'path/sums.ts',
    'path/device',
    'path/firewall',
    'report',
    'node/restart',
  ],
  'node/choose.ts': [
    'base',
    'options.ts',
    'path/catalog.ts',
    'host',
    'control/config',
    'control/store',
    'control/lease',
    'control/kube',
    'path/engine',
    'path/contract.ts',
    'path/tunnel',
    'path/backends',
    'node/restart',
  ],
  'daemon.ts': ['base', 'net', 'options.ts', 'host', 'report', 'node/restart', 'node', 'node/choose.ts'],
  'begin.ts': [
    'base',
    'net',
    'options.ts',
    'path/catalog.ts',
    'host',
    'control/config',
    'control/lease',
    'report',
    'node/restart',
    'node',
    'node/choose.ts',
    'daemon.ts',
  ],
  'weftd.ts': ['base', 'options.ts', 'host', 'report', 'node/restart', 'begin.ts', 'tool/cleanup'],
  'executable.ts': ['weftd.ts', 'tool/weft'],
  'tool/doctor': ['base', 'net', 'path/catalog.ts', 'path/firewall/flannel-rules.ts', 'host', 'report'],
  'tool/measure': ['base', 'net', 'host'],
  'tool/cleanup': [
    'base',
    'net',
    'options.ts',
    'path/catalog.ts',
    'host',
    'control/config',
    'control/store',
    'control/lease',
    'path/device',
    'path/remains.ts',
    'path/firewall',
    'node/choose.ts',
    'node/restart',
  ],
  'tool/weft': [
    'base',
    'net',
    'options.ts',
    'path/catalog.ts',
    'host',
    'control/config',
    'control/store',
    'control/lease',
    'report',
    'node',
    'node/choose.ts',
    'node/restart',
    'tool/doctor',
    'tool/measure',
    'tool/cleanup',
  ],
  'report/page': ['base', 'net', 'path/catalog.ts', 'report', 'tool/doctor'],
}

const files = readdirSync(source, { recursive: true, encoding: 'utf8' }).filter((file) => file.endsWith('.ts'))
const imports = new Map(
  files.map((file) => {
    const text = readFileSync(join(source, file), 'utf8')
    return [file, [...text.matchAll(/(?:from|import\()\s*'([^']+)'/g)].map((match) => match[1]!)]
  }),
)
/** Returns the part of a file: the file itself if the table names it, otherwise the longest folder that the table names. */
function roomOf(path: string, table: object = ALLOWED): string {
  if (Object.hasOwn(table, path) || !path.includes('/')) return path
  return roomOf(dirname(path), table)
}
const resolveImport = (file: string, target: string): string => relative(source, join(source, dirname(file), target))
/** Returns the part of an import, for example `native` for a folder next to src/. */
function roomOfImport(file: string, target: string): string {
  const path = resolveImport(file, target)
  return path.startsWith('../') ? path.split('/')[1]! : roomOf(path)
}

describe('architecture', () => {
  it('has few entries at the top, so that a newcomer finds a folder by its name', () => {
    expect(readdirSync(source).length).toBeLessThanOrEqual(13)
  })

  it('has the unit tests in the same folders as the sources', () => {
    const tests = readdirSync(join(root, 'test/unit'), { recursive: true, encoding: 'utf8' })
    const folders = new Set(tests.filter((file) => file.endsWith('.test.ts')).map((file) => dirname(file)))
    const own = new Set([...files.map((file) => dirname(file)), 'bench', 'scripts'])
    expect([...folders].filter((folder) => !own.has(folder))).toEqual([])
  })

  it('has a rule for every part, and no unused rule', () => {
    const needed = new Map<string, Set<string>>()
    for (const file of files) {
      const others = needed.get(roomOf(file)) ?? new Set()
      for (const target of imports.get(file)!) if (target.startsWith('.')) others.add(roomOfImport(file, target))
      needed.set(roomOf(file), others)
    }
    expect([...needed.keys()].toSorted()).toEqual(Object.keys(ALLOWED).toSorted())
    for (const [room, allowed] of Object.entries(ALLOWED))
      expect([room, allowed.filter((other) => !needed.get(room)!.has(other))]).toEqual([room, []])
  })

  it('has a file for each entry of the list of pure files', () => {
    expect(PURE.filter((path) => !files.some((file) => file.startsWith(path)))).toEqual([])
  })

  it.each(files)('%s imports only files that its part may import', (file) => {
    const room = roomOf(file)
    const allowed = ALLOWED[room] ?? []
    const wrong = imports.get(file)!.filter((target) => {
      if (!target.startsWith('.')) return false
      const other = roomOfImport(file, target)
      return other !== room && !allowed.includes(other)
    })
    expect(wrong).toEqual([])
  })

  it.each(files.filter(isPure))('%s does no I/O', (file) => {
    const builtIn = imports.get(file)!.filter((target) => target.startsWith('node:'))
    expect(builtIn).toEqual([])
    expect(readFileSync(join(source, file), 'utf8')).not.toMatch(
      /\b(Date\.now|new Date|performance\.now|Math\.random|setTimeout)\b/,
    )
  })

  it('never combines AbortSignal.any with AbortSignal.timeout, which Node.js 20 forgets at a garbage collection', () => {
    const code = (file: string): string => readFileSync(join(source, file), 'utf8').replaceAll(/^\s*\/\/.*$/gm, '')
    expect(
      files.filter((file) => /AbortSignal\.any/.test(code(file)) && /AbortSignal\.timeout/.test(code(file))),
    ).toEqual([])
  })

  it('never exports a key of node:crypto, at which Node.js 20 can hang during a garbage collection', () => {
    expect(files.filter((file) => /\.export\(/.test(readFileSync(join(source, file), 'utf8')))).toEqual([])
  })

  it('locates files next to the program in one file, and files inside the executable in another', () => {
    const BESIDE = /\bimport\.meta\b|\bcreateRequire\b|\brequire\(|\b__(?:file|dir)name\b|\bargv\[[01]\]|\bexecPath\b/
    expect(files.filter((file) => BESIDE.test(readFileSync(join(source, file), 'utf8')))).toEqual([
      'base/assets-inside.ts',
      'base/assets.ts',
    ])
  })

  it('has no import cycles', () => {
    const state = new Map<string, 'open' | 'done'>()
    const circles: string[] = []
    const visit = (file: string, path: readonly string[]): void => {
      if (state.get(file) === 'open') circles.push([...path.slice(path.indexOf(file)), file].join(' -> '))
      if (state.has(file)) return
      state.set(file, 'open')
      for (const target of imports.get(file) ?? [])
        if (target.startsWith('.')) visit(resolveImport(file, target), [...path, file])
      state.set(file, 'done')
    }
    for (const file of files) visit(file, [])
    expect(circles).toEqual([])
  })

  it('starts each file with a line that says what the file is for', () => {
    for (const file of files)
      expect(readFileSync(join(source, file), 'utf8').split('\n')[0], file).toMatch(
        new RegExp(
          `^// ${file
            .split('/')
            .at(-1)!
            .replace('.', String.raw`\.`)} - `,
        ),
      )
  })
})

/** The parts of native/, and the other parts that each may include. */
const NATIVE_ALLOWED: Readonly<Record<string, readonly string[]>> = {
  crypto: [],
  core: ['crypto'],
  encap: ['core', 'crypto'],
  io: ['core'],
  walk: ['core', 'io'],
  'engine.h': ['core', 'io', 'walk'],
  'engine.cc': ['crypto', 'encap', 'io', 'walk', 'engine.h'],
  napi: ['core', 'io', 'walk', 'engine.h'],
}
/** The headers of C and the kernel that the core may include, because they have only types and constants. */
const PURE_HEADERS = new Set(['errno.h', 'immintrin.h', 'netinet/in.h', 'sys/uio.h'])
/** Matches calls of functions, but not of an object's methods. */
const CALLS =
  /(?<!\.|->|Opened )\b(clock_gettime|getenv|ioctl|open|poll|random|recv\w*|send(to|msg|mmsg)|socket|std::chrono|time)\s*\(/

const native = join(root, 'native')
const sources = readdirSync(native, { recursive: true, encoding: 'utf8' }).filter((file) => /\.(cc|h)$/.test(file))
const includes = new Map(
  sources.map((file) => {
    const text = readFileSync(join(native, file), 'utf8')
    return [file, [...text.matchAll(/^#include (<[^>]+>|"[^"]+")/gm)].map((match) => match[1]!)]
  }),
)
const nativeRoomOf = (path: string): string => roomOf(path, NATIVE_ALLOWED)

describe('architecture of native/', () => {
  it('has a rule for every part', () => {
    expect([...new Set(sources.map(nativeRoomOf))].toSorted()).toEqual(Object.keys(NATIVE_ALLOWED).toSorted())
  })

  it.each(sources)('%s includes only files that its part may include', (file) => {
    const room = nativeRoomOf(file)
    const wrong = includes.get(file)!.filter((target) => {
      if (!target.startsWith('"')) return false
      const other = nativeRoomOf(join(dirname(file), target.slice(1, -1)))
      return other !== room && !NATIVE_ALLOWED[room]?.includes(other)
    })
    expect(wrong).toEqual([])
  })

  it.each(sources.filter((file) => ['core', 'encap'].includes(nativeRoomOf(file))))('%s does no I/O', (file) => {
    const system = includes.get(file)!.filter((target) => /^<.*\.h>$/.test(target))
    expect(system.map((target) => target.slice(1, -1)).filter((name) => !PURE_HEADERS.has(name))).toEqual([])
    expect(
      includes.get(file)!.filter((target) => /^<(chrono|filesystem|fstream|iostream|random|thread)>$/.test(target)),
    ).toEqual([])
    expect(readFileSync(join(native, file), 'utf8')).not.toMatch(CALLS)
  })

  it('starts each file with a line that says what the file is for', () => {
    for (const file of sources) {
      const [first = ''] = readFileSync(join(native, file), 'utf8').split('\n')
      expect(first.startsWith(`// ${file.split('/').at(-1)!} - `), file).toBe(true)
    }
  })
})

/**
 * A function of a walk. A later function must call it, or it must call an earlier one. `of` is a file of src/, or of
 * native/ if it ends with .h or .cc. `name` is a function, a constant, or `Class.method`.
 */
interface Step {
  readonly of: string
  readonly name: string
  /**
   * The name by which other code calls the function, if it is not the last part of `name`: the method of an interface,
   * or a callback.
   */
  readonly as?: string
}
const step = (of: string, name: string, as?: string): Step => ({ of, name, ...(as === undefined ? {} : { as }) })

/** The walks of ARCHITECTURE.md: the functions in the order in which they run, and the maximum number of their files. */
const WALKS: Readonly<Record<string, { readonly mostFiles: number; readonly steps: readonly Step[] }>> = {
  'A packet out': {
    mostFiles: 6,
    steps: [
      step('walk/egress.h', 'pump'),
      step('walk/egress.h', 'forward'),
      step('core/packet.h', 'read_packet'),
      step('core/peers.h', 'find'),
      step('walk/egress.h', 'cut'),
      step('core/segment.cc', 'Segmenter.begin'),
      step('encap/flannel_udp.h', 'seal'),
      step('io/sender.cc', 'Sender.flush'),
    ],
  },
  'A packet in': {
    mostFiles: 7,
    steps: [
      step('walk/ingress.h', 'pump'),
      step('io/receiver.cc', 'Receiver.receive'),
      step('encap/flannel_udp.h', 'open'),
      step('walk/ingress.h', 'receive'),
      step('core/inspect.h', 'inspect'),
      step('core/filter.h', 'reason_to_drop'),
      step('core/coalesce.cc', 'Coalescer.add'),
      step('io/tun_writer.cc', 'TunWriter.write'),
    ],
  },
  'A lease': {
    mostFiles: 8,
    steps: [
      step('control/store/etcd/etcd.ts', 'EtcdStore.watch'),
      step('control/lease/decode.ts', 'sourceOf', 'watch'),
      step('control/lease/follow.ts', 'LeaseFollower.#startWatch'),
      step('control/lease/follow.ts', 'LeaseFollower.next'),
      step('control/lease/follow.ts', 'LeaseFollower.#takeBatches'),
      step('control/lease/fail-static.ts', 'LeaseView.change'),
      step('control/lease/follow.ts', 'followLeases'),
      step('node/loops/peers.ts', 'keepPeers'),
      step('node/loops/peers.ts', 'applyPeers'),
      step('node/data-paths.ts', 'DataPaths.apply'),
      step('node/data-paths.ts', 'PathPart.transfer'),
      step('node/data-paths.ts', 'PathPart.#transferAll'),
      step('path/tunnel/tunnel.ts', 'Tunnel.apply'),
      step('path/tunnel/tunnel-peers.ts', 'TunnelPeers.apply'),
    ],
  },
  'A restart': {
    mostFiles: 6,
    steps: [
      step('weftd.ts', 'main'),
      step('weftd.ts', 'runOnce'),
      step('begin.ts', 'runDaemon'),
      step('node/restart/handover.ts', 'enterHandover'),
      step('begin.ts', 'handoverParts'),
      step('begin.ts', 'resume'),
      step('node/choose.ts', 'createBackend'),
      step('node/choose.ts', 'makeBackend'),
      step('node/choose.ts', 'BACKENDS'),
      step('path/backends/udp.ts', 'createUdpBackend'),
      step('node/data-paths.ts', 'openDataPaths'),
    ],
  },
  'A flag': {
    mostFiles: 5,
    steps: [
      step('options.ts', 'FLAGS'),
      step('weftd.ts', 'main'),
      step('weftd.ts', 'runOnce'),
      step('begin.ts', 'runDaemon'),
      step('begin.ts', 'handoverParts'),
      step('begin.ts', 'resume'),
      step('node/choose.ts', 'createBackend'),
      step('node/choose.ts', 'startEngineOf'),
      step('path/engine/native-engine.ts', 'NativeEngine'),
    ],
  },
}
const NUMBERS = ['No', 'One', 'Two', 'Three', 'Four', 'Five', 'Six', 'Seven', 'Eight', 'Nine', 'Ten']
const isNative = (file: string): boolean => /\.(h|cc)$/.test(file)

/** Returns the text of a function, constant or class: from its first line to the closing bracket with the same indentation. */
function textOf({ of, name }: Step): string | undefined {
  const [owner, member] = name.includes('.') ? name.split('.') : [undefined, name]
  const whole = readFileSync(join(isNative(of) ? native : source, of), 'utf8').split('\n')
  const inOwner = owner !== undefined && !isNative(of)
  const lines = inOwner ? blockOf(whole, new RegExp(`^(export )?(abstract )?class ${owner}\\b`)) : whole
  const called = isNative(of) && owner !== undefined ? `${owner}::${member}` : member
  const begins = isNative(of)
    ? new RegExp(`^ *[\\w:<>*&, ]* [*&]?${called}\\(.*[{,}]$`)
    : inOwner
      ? new RegExp(`^ {2}(static )?(async )?\\*?${called}[<(]`)
      : new RegExp(`^(export )?((async )?function\\*? |const |class )${called}\\b`)
  return lines && blockOf(lines, begins)?.join('\n')
}
function blockOf(lines: readonly string[], begins: RegExp): readonly string[] | undefined {
  const first = lines.findIndex((line) => begins.test(line))
  if (first === -1) return undefined
  if (/\{.*\}$/.test(lines[first]!)) return [lines[first]!]
  const indent = /^ */.exec(lines[first]!)![0]
  const last = lines.findIndex(
    (line, at) => at > first && new RegExp(`^${indent}[}\\])]`).test(line) && !line.endsWith('{'),
  )
  return lines.slice(first, last + 1)
}
/** True if the code of `caller` after its first line contains the name of `called`. */
function calls(caller: Step, called: Step): boolean {
  const [, ...lines] = textOf(caller)!.split('\n')
  const code = lines.filter((line) => !/^ *(\/\/|\/?\*)/.test(line)).join('\n')
  return new RegExp(`(?<![\\w#])${called.as ?? called.name.split('.').at(-1)!}(?!\\w)`).test(code)
}

describe('a walk of ARCHITECTURE.md', () => {
  const page = readFileSync(join(root, 'ARCHITECTURE.md'), 'utf8')

  it.each(Object.entries(WALKS))('%s has functions that exist and call each other', (_, { steps }) => {
    expect(steps.filter((each) => textOf(each) === undefined)).toEqual([])
    const isLinked = (each: Step, at: number): boolean =>
      at === 0 || steps.slice(0, at).some((earlier) => calls(earlier, each) || calls(each, earlier))
    expect(steps.filter((each, at) => !isLinked(each, at))).toEqual([])
  })

  it.each(Object.entries(WALKS))('%s has few files, and the page names them', (title, { mostFiles, steps }) => {
    const walked = [...new Set(steps.map(({ of }) => of))]
    expect(walked.length).toBeLessThanOrEqual(mostFiles)
    const section = page.split('\n## ').find((each) => each.startsWith(`${title}\n`)) ?? ''
    const [, number = '', list = ''] = /^(\w+) files [^:\n]+: ((?:`[^`]+`[,.]\s*)+)/m.exec(section) ?? []
    const named = [...list.matchAll(/`([^`]+)`/g)].map((match) => match[1]!)
    expect(number).toBe(NUMBERS[walked.length])
    const bare = (file: string): string => file.replace(/\.(ts|h|cc)$/, '')
    expect(named.map(bare).toSorted()).toEqual(walked.map(bare).toSorted())
  })

  it.each(['A packet out', 'A packet in'])('%s has only files that are part of the engine', (title) => {
    const made = included('engine.cc')
    const walked = WALKS[title]!.steps.map(({ of }) => of.replace(/\.cc$/, '.h'))
    expect(walked.filter((file) => !made.has(file))).toEqual([])
  })
})

/** Returns all files that a file of native/ includes, directly or indirectly. */
function included(file: string, seen = new Set<string>()): ReadonlySet<string> {
  for (const target of includes.get(file) ?? []) {
    const name = target.slice(1, -1)
    const path = [name, join(dirname(file), name)].find((each) => includes.has(each))
    if (path === undefined || seen.has(path)) continue
    seen.add(path)
    included(path, seen)
  }
  return seen
}
