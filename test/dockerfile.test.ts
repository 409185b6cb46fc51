// dockerfile.test.ts - what can be known of deploy/Dockerfile without building it; `npm run image:test` builds it.

import { existsSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { describe, expect, it } from 'vitest'

const root = join(import.meta.dirname, '..')
const read = (path: string): string => readFileSync(join(root, path), 'utf8')

/** Instructions with their arguments, comments left out, continued lines joined. */
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
  it('copies what there is, and .dockerignore lets through exactly that', () => {
    expect(copied.length).toBeGreaterThan(5)
    expect(copied.filter((path) => !existsSync(join(root, path)))).toEqual([])
    const [first, ...rest] = read('.dockerignore')
      .split('\n')
      .filter((line) => line !== '' && !line.startsWith('#'))
    expect(first).toBe('*')
    expect(rest.toSorted()).toEqual([...new Set(copied)].map((path) => `!${path}`).toSorted())
  })

  it('builds on images that are arguments, with a default that names a release', () => {
    const defaults = Object.fromEntries(all('ARG').map((rest) => rest.split('=') as [string, string]))
    expect(Object.keys(defaults).toSorted()).toEqual(['BASE', 'NODE'])
    for (const image of Object.values(defaults)) {
      expect(image).toMatch(/^docker\.io\/library\/[a-z]+:[\w.-]+$/)
      expect(image).not.toMatch(/latest/)
    }
    expect(all('FROM')).toEqual(['${NODE} AS build', '${BASE}'])
  })

  it('names no architecture', () => {
    expect(read('deploy/Dockerfile')).not.toMatch(/amd64|x86|x64|arm|aarch/i)
  })

  it('ships no compiler, asks nothing while it installs, and leaves no lists', () => {
    for (const rest of all('RUN').filter((text) => text.includes('apt-get install')))
      expect(rest).toMatch(/DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends /)
    const shipped = lastStage.map(([, rest]) => rest).join('\n')
    expect(shipped).toContain('iproute2 iptables libstdc++6 nftables')
    expect(shipped).not.toMatch(/g\+\+|gcc|make|python|npm/)
    expect(shipped).toContain('rm -rf /var/lib/apt/lists/*')
  })

  it("starts as flannel's image does", () => {
    expect(all('ENTRYPOINT')).toEqual(['["/opt/bin/flanneld"]'])
    expect(all('CMD')).toEqual([])
    expect(all('USER')).toEqual([])
  })

  it('is run by the command of docs/operating.md with what the daemon needs, and no more', () => {
    const command = /^docker run ((?:.*\\\n)*.*) weft /m.exec(read('docs/operating.md'))![1]!
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
