// unit-file.test.ts - deploy/weftd.service names flags that exist and grants what docs/running.md says.

import { spawnSync } from 'node:child_process'
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { parseEnv } from 'node:util'
import { describe, expect, it } from 'vitest'
import { applyEnvironment, parseFlags } from '../../../../src/base/go-flags.ts'
import { FLAGS } from '../../../../src/options.ts'

const text = readFileSync(new URL('../../../../deploy/weftd.service', import.meta.url), 'utf8')
const values = (key: string): string[] =>
  [...text.matchAll(new RegExp(`^${key}=(.*)$`, 'gm'))].map((match) => match[1]!)
const hasSystemd = spawnSync('systemd-analyze', ['--version']).status === 0

describe('weftd.service', () => {
  it('names only flags that there are', () => {
    const [program, ...args] = values('ExecStart')[0]!.split(' ')
    expect(program).toMatch(/\/weftd$/)
    const { given, rest } = parseFlags(FLAGS, args)
    expect([...given]).toEqual(['subnet-file'])
    expect(rest).toEqual([])
  })

  it('grants CAP_NET_ADMIN, the TUN device, /run/flannel and /run/weft', () => {
    expect(values('CapabilityBoundingSet')).toEqual(['CAP_NET_ADMIN'])
    expect(values('DeviceAllow')).toEqual(['/dev/net/tun rw'])
    expect(values('DevicePolicy')).toEqual(['closed'])
    expect(values('ProtectSystem')).toEqual(['strict'])
    expect(values('RuntimeDirectory')).toEqual(['flannel weft'])
  })

  it('waits for READY=1 however long etcd takes, from the daemon alone, and watches it', () => {
    expect(values('Type')).toEqual(['notify'])
    expect(values('NotifyAccess')).toEqual(['main'])
    expect(values('TimeoutStartSec')).toEqual(['infinity'])
    expect(values('Restart')).toEqual(['always'])
    // Five looks at the threads, 2 s apart, must fit before it strikes, and a busy machine be given time.
    expect(Number(values('WatchdogSec')[0])).toBeGreaterThanOrEqual(20)
    expect(values('RestrictAddressFamilies')[0]!.split(' ')).toContain('AF_UNIX')
  })

  it('comes before whatever starts containers, and does not start again on a command line that cannot be read', () => {
    expect(values('Before')).toEqual(['docker.service containerd.service kubelet.service'])
    expect(values('RestartPreventExitStatus')).toEqual(['2'])
    // Where ProtectSystem=strict does not reach: /run/docker_opts.env is not in /run/flannel.
    expect(values('#ExecStartPost')).toEqual(['+/usr/bin/weft docker-opts'])
  })

  it('reads /etc/default/weftd, of which docs/running.md has an example that names flags that there are', () => {
    expect(values('EnvironmentFile')).toEqual(['-/etc/default/weftd'])
    const running = readFileSync(new URL('../../../../docs/running.md', import.meta.url), 'utf8')
    const [, example = ''] = /^# \/etc\/default\/weftd\n(.*?)\n\n/ms.exec(running) ?? []
    const environment = parseEnv(example)
    const names = Object.keys(FLAGS).map((name) => `FLANNELD_${name.toUpperCase().replaceAll('-', '_')}`)
    expect(Object.keys(environment).length).toBeGreaterThan(3)
    expect(names).toEqual(expect.arrayContaining(Object.keys(environment)))
    const bad: string[] = []
    applyEnvironment(FLAGS, parseFlags(FLAGS, []), 'FLANNELD', environment, (problem) => bad.push(problem))
    expect(bad).toEqual([])
  })

  it('is a unit that systemd reads without complaint', ({ skip }) => {
    skip(!hasSystemd, 'no systemd-analyze')
    const folder = mkdtempSync(join(tmpdir(), 'weft-unit-'))
    try {
      const path = join(folder, 'weftd.service')
      // systemd asks whether the program is there.
      writeFileSync(path, text.replace('/usr/bin/weftd', process.execPath))
      const { status, stderr } = spawnSync('systemd-analyze', ['verify', path], { encoding: 'utf8' })
      expect(stderr.split('\n').filter((line) => line.includes('weftd.service'))).toEqual([])
      expect(status).toBe(0)
    } finally {
      rmSync(folder, { recursive: true })
    }
  })
})
