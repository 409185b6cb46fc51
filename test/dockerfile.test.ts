// dockerfile.test.ts - the checks of deploy/Dockerfile and deploy/flanneld.sh that need no build; `npm run image:test` builds the image.

import { spawnSync } from 'node:child_process'
import { cpSync, existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { delimiter, join } from 'node:path'
import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import { TASKS } from '../scripts/tasks.mjs'

const root = join(import.meta.dirname, '..')
const read = (path: string): string => readFileSync(join(root, path), 'utf8')

/** The instructions and their arguments, without comments, and with continued lines joined. */
const instructions = read('deploy/Dockerfile')
  .replace(/^#.*\n/gm, '')
  .replace(/\\\n/g, ' ')
  .split('\n')
  .filter(Boolean)
  .map((line) => /^(\S+)\s+(.*)$/.exec(line)!.slice(1) as [string, string])
const all = (name: string): string[] => instructions.filter(([word]) => word === name).map(([, rest]) => rest)
const lastStage = instructions.slice(instructions.findLastIndex(([word]) => word === 'FROM'))

const copied = all('COPY')
  .filter((rest) => !rest.startsWith('--from'))
  .flatMap((rest) => rest.split(/\s+/).slice(0, -1))

describe('deploy/Dockerfile', () => {
  it('copies only existing files, and .dockerignore lets exactly those through', () => {
    expect(copied.length).toBeGreaterThan(5)
    expect(copied.filter((path) => !existsSync(join(root, path)))).toEqual([])
    const [first, ...rest] = read('.dockerignore')
      .split('\n')
      .filter((line) => line !== '' && !line.startsWith('#'))
    expect(first).toBe('*')
    expect(rest.toSorted()).toEqual([...new Set(copied)].map((path) => `!${path}`).toSorted())
  })

  it('runs no script of the project that it has not copied', () => {
    const run = all('RUN').join(' ')
    expect(run).not.toMatch(/npm (run|test|start)\b/) // a script of package.json may run any file
    const scripts = [...run.matchAll(/\bnode (scripts\/\S+)/g)].map(([, path]) => path)
    expect(scripts).not.toEqual([])
    expect(scripts.filter((path) => !copied.includes(path!))).toEqual([])
  })

  it('builds with the commands of `npm run build`', () => {
    const commands = TASKS['build']!.commands.map((words) =>
      (words[0] === 'node' ? words : ['npx', ...words]).join(' '),
    )
    expect(commands.filter((command) => !all('RUN').some((run) => run.includes(command)))).toEqual([])
  })

  it('builds on images that are arguments, each with a release as its default', () => {
    const given = all('ARG').filter((rest) => rest.includes('='))
    const defaults = Object.fromEntries(given.map((rest) => rest.split('=') as [string, string]))
    expect(Object.keys(defaults).toSorted()).toEqual(['BASE', 'NODE'])
    // Even releases are supported for thirty months; 20 ended in April 2026.
    const [, major] = /:(\d+)-/.exec(defaults['NODE']!)!
    expect(Number(major)).toBeGreaterThanOrEqual(22)
    expect(Number(major) % 2).toBe(0)
    for (const image of Object.values(defaults)) {
      expect(image).toMatch(/^docker\.io\/library\/[a-z]+:[\w.-]+$/)
      expect(image).not.toMatch(/latest/)
    }
    expect(all('FROM')).toEqual(['${NODE} AS build', '${BASE}'])
  })

  it('has its socket on the volume of subnet.env, because the rest of the file system is read-only', () => {
    expect(lastStage).toContainEqual(['ENV', 'FLANNELD_STATUS_SOCKET=/run/flannel/weftd.sock'])
  })

  it('names no architecture', () => {
    expect(read('deploy/Dockerfile')).not.toMatch(/amd64|x86|x64|arm|aarch/i)
  })

  it('ships no compiler, installs packages without questions, and leaves no package lists', () => {
    for (const rest of all('RUN').filter((text) => text.includes('apt-get install')))
      expect(rest).toMatch(/DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends /)
    const shipped = lastStage.map(([, rest]) => rest).join('\n')
    expect(shipped).toContain('ca-certificates iproute2 iptables libstdc++6 nftables ')
    expect(shipped).not.toMatch(/g\+\+|gcc|make|python|npm/)
    expect(shipped).toContain('rm -rf /var/lib/apt/lists/*')
  })

  it("labels the image with the package's description", () => {
    const { name, version, license } = JSON.parse(read('package.json')) as Record<string, string>
    const label = (key: string): string | undefined =>
      new RegExp(`org\\.opencontainers\\.image\\.${key}="([^"]*)"`).exec(all('LABEL').join(' '))?.[1]
    expect([label('title'), label('version'), label('licenses')]).toEqual([name, version, license])
    expect(label('description')).toMatch(/flanneld/)
    expect(label('base\\.name')).toBe('${BASE}')
    // An argument before the last FROM is valid only in FROM.
    expect(lastStage.slice(0, 2)).toEqual([
      ['FROM', '${BASE}'],
      ['ARG', 'BASE'],
    ])
  })

  it('has a folder for each kind of iptables, with the programs of both families', () => {
    const links = /for family in (.*); do for name in (.*); do\s+ln -s \/usr\/sbin\/xtables-\$kind-multi/.exec(
      all('RUN').join('\n'),
    )!
    const [, families = '', names = ''] = links
    const programs = families.split(' ').flatMap((family) => names.replaceAll('$family', family).split(' '))
    expect(programs.toSorted()).toEqual(
      ['iptables', 'ip6tables'].flatMap((name) => [name, `${name}-save`, `${name}-restore`]).toSorted(),
    )
  })

  it("starts as flannel's image does", () => {
    expect(all('ENTRYPOINT')).toEqual(['["/opt/bin/flanneld"]'])
    expect(all('CMD')).toEqual([])
    expect(all('USER')).toEqual([])
  })

  it('is run by the command of docs/docker.md with exactly the privileges that the daemon needs', () => {
    const command = /^docker run ((?:.*\\\n)*.*) weft /m.exec(read('docs/docker.md'))![1]!
    const options = command.split(/[\s\\]+/).join(' ')
    for (const option of [
      '--network host',
      '--cap-drop ALL --cap-add NET_ADMIN',
      '--security-opt no-new-privileges',
      '--device /dev/net/tun',
      '-v /run/flannel:/run/flannel',
    ])
      expect(options).toContain(option)
    expect(options).not.toContain('--privileged')
    expect(options.match(/--cap-add/g)).toHaveLength(1)
  })
})

describe('deploy/flanneld.sh', () => {
  let folder: string
  beforeEach(() => {
    folder = mkdtempSync(join(tmpdir(), 'weft-image-'))
    for (const name of ['bin', 'weft/bin', 'host']) mkdirSync(join(folder, name), { recursive: true })
    cpSync(join(root, 'deploy/flanneld.sh'), join(folder, 'bin/flanneld'))
    program('weft/bin/flanneld', 'echo "${PATH%%:*}" "$@"')
    for (const kind of ['nft', 'legacy']) saves(kind, undefined, 'ip6tables')
  })
  afterEach(() => rmSync(folder, { recursive: true }))

  const program = (path: string, body: string): void =>
    writeFileSync(join(folder, path), `#!/bin/sh\n${body}\n`, { mode: 0o755 })
  /** Makes iptables-save print a table with these chains and this number of rules; it fails if `state` is undefined. */
  const saves = (kind: string, state: { chains?: string[]; rules?: number } | undefined, tool = 'iptables'): void => {
    const { chains = [], rules = 0 } = state ?? {}
    const lines = ['*mangle', ':INPUT ACCEPT [0:0]', ...chains.map((chain) => `:${chain} - [0:0]`)]
    const text = [...lines, ...Array<string>(rules).fill('-A INPUT -j ACCEPT'), 'COMMIT'].join('\n')
    program(`host/${tool}-${kind}-save`, state ? `cat <<'END'\n${text}\nEND` : 'exit 1')
  }
  /** Returns the first kind in the PATH of weftd, which also gets the arguments. */
  const chosen = (): string => {
    const path = [join(folder, 'host'), process.env['PATH']].join(delimiter)
    const args = ['--iface', 'two words']
    const { stdout } = spawnSync(join(folder, 'bin/flanneld'), args, { encoding: 'utf8', env: { PATH: path } })
    const [, kind] = /\/weft\/iptables\/(\w+) --iface two words\n$/.exec(stdout.replace(folder, '')) ?? []
    return kind ?? stdout
  }

  const hint = ['KUBE-IPTABLES-HINT']
  it.each([
    ["kubelet's chain in legacy", { rules: 20 }, { chains: ['KUBE-IPTABLES-HINT'] }, 'legacy'],
    ['more legacy rules', { rules: 1 }, { rules: 2 }, 'legacy'],
    ['no rules', {}, {}, 'nft'],
    ['neither', undefined, undefined, 'nft'],
  ])('of %s in IPv6 only chooses: nft %j, legacy %j, %s', (_what, nft, legacy, kind) => {
    for (const [of, state] of [['nft', nft] as const, ['legacy', legacy] as const]) {
      saves(of, {})
      saves(of, state, 'ip6tables')
    }
    expect(chosen()).toBe(kind)
  })

  it('adds up both families, so that one can outweigh the other', () => {
    saves('nft', { rules: 5 })
    saves('legacy', { rules: 3 })
    saves('nft', { rules: 1 }, 'ip6tables')
    saves('legacy', { rules: 4 }, 'ip6tables')
    expect(chosen()).toBe('legacy')
    saves('legacy', undefined, 'ip6tables') // the IPv4 rules alone decide
    expect(chosen()).toBe('nft')
    saves('legacy', undefined) // the IPv4 rules cannot be read, so their number is unknown
    saves('legacy', { rules: 9 }, 'ip6tables')
    expect(chosen()).toBe('nft')
    saves('legacy', { rules: 3 })
    saves('nft', undefined)
    saves('nft', undefined, 'ip6tables')
    expect(chosen()).toBe('legacy')
  })

  it.each([
    ['no rules', {}, {}, 'nft'],
    ['as many rules of both kinds', { rules: 3 }, { rules: 3 }, 'nft'],
    ['more legacy rules', { rules: 3 }, { rules: 4 }, 'legacy'],
    ['more nft rules', { rules: 4 }, { rules: 3 }, 'nft'],
    ["kubelet's chain in nft, more rules in legacy", { chains: hint }, { rules: 20 }, 'nft'],
    ["kubelet's chain in legacy, more rules in nft", { rules: 20 }, { chains: hint }, 'legacy'],
    ["kubelet's chain in both", { chains: hint }, { chains: hint, rules: 20 }, 'nft'],
    ["kubelet's older chain in legacy", { rules: 20 }, { chains: ['KUBE-KUBELET-CANARY'] }, 'legacy'],
    ["kube-proxy's chain, which says nothing", { rules: 2 }, { chains: ['KUBE-PROXY-CANARY'] }, 'nft'],
    ['no nf_tables in the kernel', undefined, {}, 'legacy'],
    ['no right to read legacy rules', {}, undefined, 'nft'],
    ['neither', undefined, undefined, 'nft'],
  ])('of %s chooses: nft %j, legacy %j, %s', (_what, nft, legacy, kind) => {
    saves('nft', nft)
    saves('legacy', legacy)
    expect(chosen()).toBe(kind)
  })
})
