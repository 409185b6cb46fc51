// unit-file.test.ts - deploy/weftd.service overrides no variable, and grants the rights that docs/running.md lists.

import { spawnSync } from 'node:child_process'
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { dirname, join } from 'node:path'
import { parseEnv } from 'node:util'
import { describe, expect, it } from 'vitest'
import { applyEnvironment, parseFlags } from '../../../../src/base/go-flags.ts'
import { FLAGS } from '../../../../src/options.ts'
import { STOP_MS } from '../../../../src/weftd.ts'

const text = readFileSync(new URL('../../../../deploy/weftd.service', import.meta.url), 'utf8')
const values = (key: string): string[] =>
  [...text.matchAll(new RegExp(`^${key}=(.*)$`, 'gm'))].map((match) => match[1]!)
const hasSystemd = spawnSync('systemd-analyze', ['--version']).status === 0

describe('weftd.service', () => {
  it('overrides no variable of /etc/default/weftd, and lets weftd write the default files', () => {
    const [program, ...args] = values('ExecStart')[0]!.split(' ')
    expect(program).toMatch(/\/weftd$/)
    expect(args).toEqual([])
    const folders = values('RuntimeDirectory')[0]!
      .split(' ')
      .map((name) => `/run/${name}`)
    const files = [FLAGS['subnet-file'].default, FLAGS['status-socket'].default]
    expect(folders).toEqual(files.map((file) => dirname(file)))
  })

  it('grants CAP_NET_ADMIN, the TUN device, /run/flannel and /run/weft', () => {
    expect(values('CapabilityBoundingSet')).toEqual(['CAP_NET_ADMIN'])
    expect(values('DeviceAllow')).toEqual(['/dev/net/tun rw'])
    expect(values('DevicePolicy')).toEqual(['closed'])
    expect(values('ProtectSystem')).toEqual(['strict'])
    expect(values('RuntimeDirectory')).toEqual(['flannel weft'])
  })

  it('waits for READY=1 of the main process without a limit, and has a watchdog', () => {
    expect(values('Type')).toEqual(['notify'])
    expect(values('NotifyAccess')).toEqual(['main'])
    expect(values('TimeoutStartSec')).toEqual(['infinity'])
    expect(values('Restart')).toEqual(['always'])
    // Five checks of the threads, 2 s apart, must fit before the watchdog strikes, even on a busy machine.
    expect(Number(values('WatchdogSec')[0])).toBeGreaterThanOrEqual(20)
    expect(values('RestrictAddressFamilies')[0]!.split(' ')).toContain('AF_UNIX')
  })

  it('waits longer than weftd may take to stop, and the documents and the chart name the same time limit', () => {
    const file = (path: string): string => readFileSync(new URL(`../../../../${path}`, import.meta.url), 'utf8')
    expect(Number(values('TimeoutStopSec')[0]) * 1000).toBeGreaterThan(STOP_MS)
    expect(file('docs/health.md')).toContain(
      `| how long weftd takes to stop after SIGTERM or SIGINT | at most ${STOP_MS / 1000} s`,
    )
    expect(file('docs/running.md')).toContain(`weftd stops at most ${STOP_MS / 1000} s after`)
    expect(file('deploy/charts/weft/values.yaml')).toContain(`weftd needs at most ${STOP_MS / 1000}.`)
  })

  it('starts before programs that start containers, and does not restart after an invalid command line', () => {
    expect(values('Before')).toEqual(['docker.service containerd.service kubelet.service'])
    expect(values('RestartPreventExitStatus')).toEqual(['2'])
    // ProtectSystem=strict must not protect this file, because /run/docker_opts.env is not in /run/flannel.
    expect(values('#ExecStartPost')).toEqual(['+/usr/bin/weft docker-opts'])
  })

  it('reads /etc/default/weftd, and the example in docs/running.md names existing flags', () => {
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

  it('is accepted by systemd without warnings', ({ skip }) => {
    skip(!hasSystemd, 'no systemd-analyze')
    const folder = mkdtempSync(join(tmpdir(), 'weft-unit-'))
    try {
      const path = join(folder, 'weftd.service')
      // systemd checks that the program exists.
      writeFileSync(path, text.replace('/usr/bin/weftd', process.execPath))
      const { status, stderr } = spawnSync('systemd-analyze', ['verify', path], { encoding: 'utf8' })
      expect(stderr.split('\n').filter((line) => line.includes('weftd.service'))).toEqual([])
      expect(status).toBe(0)
    } finally {
      rmSync(folder, { recursive: true })
    }
  })
})
