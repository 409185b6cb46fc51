// cluster-programs.test.ts - where the programs of a cluster come from: the go.mod of a build, and a release server with checksums.

import { createHash } from 'node:crypto'
import { mkdirSync, mkdtempSync, readFileSync, rmSync, statSync } from 'node:fs'
import { createServer, type Server } from 'node:http'
import type { AddressInfo } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest'
import { goMod, goSets, NEWEST_KUBERNETES } from '../../../scripts/cluster-programs.mjs'

describe('goMod', () => {
  it('keeps a replacement by another module', () => {
    const own = 'module a\ngo 1.26.0\n\nreplace github.com/b/c v0.3.2 => github.com/d/c v0.4.0\nreplace e => ../e\n'
    const [set] = goSets('v1.36.3')
    expect(goMod(set!, own).split('\n').slice(3)).toEqual([
      'replace github.com/b/c v0.3.2 => github.com/d/c v0.4.0',
      '',
    ])
  })
  it('replaces the modules that Kubernetes has in a folder by the published ones of the same version', () => {
    const own = [
      'module k8s.io/kubernetes',
      'go 1.26.0',
      'require k8s.io/api v0.0.0',
      'replace (',
      '\tk8s.io/api => ./staging/src/k8s.io/api',
      '\tk8s.io/kubelet => ./staging/src/k8s.io/kubelet',
      ')',
      '',
    ].join('\n')
    const [set] = goSets('v1.36.3')
    expect(goMod(set!, own).split('\n')).toEqual([
      'module weft.test/cluster',
      'go 1.26.0',
      'require k8s.io/kubernetes v1.36.3',
      'replace k8s.io/api => k8s.io/api v0.36.3',
      'replace k8s.io/kubelet => k8s.io/kubelet v0.36.3',
      '',
    ])
  })
})

it('tells the programs of Kubernetes their version', () => {
  const [set] = goSets(NEWEST_KUBERNETES)
  expect(set!.ldflags).toContain(`gitVersion=${NEWEST_KUBERNETES}`)
})

describe('download', () => {
  let cache: string
  let server: Server
  let files: Record<string, string>
  const url = (): string => `http://127.0.0.1:${(server.address() as AddressInfo).port}/`
  const architecture = process.arch === 'x64' ? 'amd64' : process.arch
  const path = `/v1.36.3/bin/linux/${architecture}/kubelet`
  const sumOf = (text: string): string => createHash('sha256').update(text).digest('hex')
  beforeEach(async () => {
    cache = mkdtempSync(join(tmpdir(), 'weft-programs-'))
    vi.stubEnv('XDG_CACHE_HOME', cache)
    vi.resetModules()
    server = createServer(({ url: asked = '' }, response) => {
      response.statusCode = files[asked] === undefined ? 404 : 200
      response.end(files[asked])
    })
    await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  })
  afterEach(() => {
    server.close()
    vi.unstubAllEnvs()
    rmSync(cache, { recursive: true })
  })
  const get = async (): Promise<void> => {
    mkdirSync(join(cache, 'weft'))
    const { download, goSets: sets } = await import('../../../scripts/cluster-programs.mjs')
    await download(url(), 'kubelet', sets('v1.36.3')[0]!)
  }

  it('keeps a program whose checksum is right', async () => {
    files = { [path]: 'a program', [`${path}.sha256`]: `${sumOf('a program')}\n` }
    await get()
    const program = join(cache, 'weft/kubelet-v1.36.3')
    expect(readFileSync(program, 'utf8')).toBe('a program')
    expect(statSync(program).mode & 0o777).toBe(0o755)
  })
  it('refuses one whose checksum is wrong, and keeps nothing', async () => {
    files = { [path]: 'another program', [`${path}.sha256`]: sumOf('a program') }
    await expect(get()).rejects.toThrow(/has the checksum/)
    expect(() => statSync(join(cache, 'weft/kubelet-v1.36.3'))).toThrow(/ENOENT/)
  })
  it('names the file that the server lacks', async () => {
    files = {}
    await expect(get()).rejects.toThrow(/kubelet(\.sha256)? answers 404/)
  })
})
