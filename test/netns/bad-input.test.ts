// bad-input.test.ts - an operator's mistakes: each ends in one clear error line with a remedy, never in a stack trace.

import { closeSync, existsSync, mkdirSync, openSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import { execute, type Finished } from '../../lab/command.ts'
import { startEtcd } from '../../lab/etcd.ts'
import { createLab, packageRoot, type Host, type Lab } from '../../lab/lab.ts'
import { addon } from '../../src/host/addon.ts'
import { eventually } from '../support/event.ts'
import { ETCD, HOSTS, needs } from '../support/needs.ts'

needs(HOSTS, ...ETCD)

let lab: Lab
let host: Host
beforeEach(async () => {
  lab = await createLab({ hosts: 1 })
  host = lab.hosts[0]!
})
afterEach(() => lab.close())

const weftd = join(packageRoot, 'bin/weftd')

function leaseDirectory(config = '{"Network":"10.5.0.0/16"}'): string {
  const folder = join(lab.folder, 'leases')
  mkdirSync(join(folder, 'subnets'), { recursive: true })
  writeFileSync(join(folder, 'config'), config)
  return folder
}

/** Runs weftd to its end on the host; `before` is a command prefix, such as setpriv. */
const run = (args: readonly string[], before: readonly string[] = []): Promise<Finished> =>
  host.run([...before, process.execPath, weftd, '--subnet-file', host.subnetFile, ...args])

const withLeases = (config?: string): string[] => ['--iface', 'eth0', '--lease-dir', leaseDirectory(config)]

/** Checks that the last line is an error with all of `parts`, and that no stack trace was printed. */
function expectOneError({ code, stderr }: Finished, exitCode: number, ...parts: string[]): void {
  const lines = stderr.trim().split('\n')
  const errors = lines.filter((line) => line.startsWith('E') || line.includes('weftd: '))
  expect(stderr).not.toMatch(/^\s+at /m)
  expect(errors).toHaveLength(1)
  for (const part of parts) expect(errors[0]).toContain(part)
  expect(code).toBe(exitCode)
}

describe('an error of one line', () => {
  it('for an unknown flag', async () =>
    expectOneError(await run(['--nonsense']), 2, 'flag provided but not defined: -nonsense', 'see --help'))
  it('for an invalid public IPv6 address', async () =>
    expectOneError(
      await run([...withLeases(), '--public-ipv6', '192.0.2.1']),
      1,
      'invalid public IPv6 address: 192.0.2.1',
      'give --public-ipv6',
    ))
  it('for a bad value', async () => expectOneError(await run(['-v=loud']), 2, 'invalid value "loud" for flag -v'))
  it('for a bad renewal margin', async () =>
    expectOneError(await run(['--subnet-lease-renew-margin=0']), 1, 'out of acceptable range', '1 to 1439'))
  it('for an unknown engine', async () =>
    expectOneError(await run(['--engine', 'warp']), 2, 'unknown engine: warp', 'native'))
  it('for an unknown feature', async () =>
    expectOneError(await run([...withLeases(), '--without', 'magic']), 2, 'unknown feature', 'udp-gso'))

  it('without /dev/net/tun', async () => {
    const hidden = ['unshare', '--mount', 'sh', '-c', 'mount -t tmpfs tmpfs /dev/net && exec "$@"', 'sh']
    expectOneError(await run(withLeases(), hidden), 1, '/dev/net/tun cannot be opened', 'modprobe tun')
  })

  it('without CAP_NET_ADMIN', async () => {
    expectOneError(
      await run(withLeases(), ['setpriv', '--bounding-set', '-net_admin', '--inh-caps', '-net_admin']),
      1,
      'EPERM',
      'CAP_NET_ADMIN',
    )
  })

  it('when the port is in use', async () => {
    const blocker = host.spawn([
      process.execPath,
      '-e',
      "require('dgram').createSocket('udp4').bind(8285, () => console.log('bound'))",
    ])
    await new Promise((resolve) => blocker.stdout!.once('data', resolve))
    expectOneError(await run(withLeases()), 1, 'UDP port 192.168.77.1:8285 is taken', '"Port" in Backend')
    expectOneError(await run([...withLeases(), '--engine', 'dgram']), 1, 'UDP port 192.168.77.1:8285 is taken')
  })

  it('when the network has a route already', async () => {
    await host.output(['ip', 'route', 'add', '10.5.0.0/16', 'via', '192.168.77.254'])
    expectOneError(await run(withLeases()), 1, '10.5.0.0/16 is already routed to eth0', 'ip route del')
  })

  it('for an unknown backend', async () => {
    expectOneError(
      await run(withLeases('{"Network":"10.5.0.0/16","Backend":{"Type":"nonsense"}}')),
      1,
      'unknown backend type: nonsense',
    )
  })

  it('for an interface that does not exist', async () => {
    const result = await run(['--iface', 'eth7', '--iface-wait', '0', '--lease-dir', leaseDirectory()])
    expectOneError(result, 1, 'Failed to find interface', 'name one with --iface: eth0:[192.168.77.1] (not asked for)')
  })

  it('without a default route', async () => {
    await host.output(['ip', 'route', 'del', 'default'])
    const began = performance.now()
    const result = await run(['--lease-dir', leaseDirectory(), '--iface-wait', '1'])
    expectOneError(result, 1, 'unable to find default route', '--iface', 'eth0:[192.168.77.1] (no default route)')
    expect(performance.now() - began).toBeGreaterThan(1_000)
    expect(result.stderr.split('waiting up to 1 s for one')).toHaveLength(2)
  })

  it('immediately for an invalid regular expression', async () => {
    const result = await run(['--iface-regex', '(eth', '--lease-dir', leaseDirectory()])
    expectOneError(result, 1, "could not compile the IP address regex '(eth'", 'missing closing )', '--iface-regex')
  })

  it('for a lease directory that is a file', async () => {
    const file = join(lab.folder, 'file')
    writeFileSync(file, '')
    expectOneError(await run(['--iface', 'eth0', '--lease-dir', file]), 1, file, '--lease-dir')
  })

  it('for credentials that cannot be read', async () => {
    expectOneError(await run(['--etcd-cafile', '/nowhere/ca.pem']), 1, 'cannot read /nowhere/ca.pem', '--etcd-cafile')
  })

  it('when all subnets are leased', async () => {
    const folder = leaseDirectory('{"Network":"10.5.0.0/28"}')
    for (const last of [4, 8, 12])
      writeFileSync(
        join(folder, 'subnets', `10.5.0.${last}-30`),
        `{"PublicIP":"192.168.77.${last + 100}","PublicIPv6":null}`,
      )
    expectOneError(await run(['--iface', 'eth0', '--lease-dir', folder]), 1, 'out of subnets')
  })
})

describe('weftd waits', () => {
  it.each([
    [
      'a broken configuration',
      '{"Network":',
      /Couldn't fetch network config: the network configuration is not valid JSON.*; correct/,
    ],
    ['a configuration without a network', '{}', /please define a correct Network parameter/],
  ])('while there is %s', async (_title, config, pattern) => {
    const daemon = host.startDaemon({ args: ['--lease-dir', leaseDirectory(config)] })
    await daemon.line(pattern)
    leaseDirectory()
    await daemon.line(/flannel is ready/)
    expect(await daemon.stop()).toBe(0)
  })

  it('for the configuration in a lease directory, and names its path', async () => {
    const folder = join(lab.folder, 'later')
    const daemon = host.startDaemon({ args: ['--lease-dir', folder] })
    const line = await daemon.line(/Couldn't fetch network config: there is no network configuration in .*; write/)
    expect(line).toContain(`to ${folder}/config, or correct --lease-dir`)
    writeFileSync(join(folder, 'config'), '{"Network":"10.5.0.0/16"}')
    await daemon.line(/flannel is ready/)
    expect(await daemon.stop()).toBe(0)
  })

  it('for the configuration under the prefix, and explains how to write it', async () => {
    const etcd = await startEtcd({ namespace: `${lab.id}-switch`, address: '192.168.77.254' })
    try {
      await etcd.ctl('put', '/elsewhere/config', '{"Network":"10.5.0.0/16"}')
      const args = ['--etcd-endpoints', etcd.endpoint]
      const daemon = host.startDaemon({ args })
      await daemon.line(
        /Couldn't fetch network config: flannel config not found in etcd store\..*etcdctl put \/coreos\.com\/network\/config .*--etcd-prefix/,
      )
      expect(await daemon.stop()).toBe(0)
      const right = host.startDaemon({ args, env: { FLANNELD_ETCD_PREFIX: '/elsewhere' } })
      await right.line(/flannel is ready/)
    } finally {
      await etcd.close()
    }
  })

  it('for etcd, names the endpoint and a remedy, and ends with 0 on SIGTERM', async () => {
    const daemon = host.startDaemon({ args: ['--etcd-endpoints', 'http://192.168.77.1:2379'] })
    await daemon.line(
      /Couldn't fetch network config: etcd at http:\/\/192\.168\.77\.1:2379 cannot be reached: .*; check --etcd-endpoints/,
    )
    expect(await daemon.stop()).toBe(0)
  })
})

describe('stopping', () => {
  it('is cut short by a second signal, and otherwise after nine seconds', async () => {
    // No process writes to this pipe, from which weftd reads its earlier subnet.
    const pipe = join(leaseDirectory(), 'subnet.env')
    await host.output(['mkfifo', pipe])
    for (const signals of [2, 1]) {
      const daemon = host.startDaemon({ args: ['--lease-dir', leaseDirectory(), '--subnet-file', pipe] })
      await daemon.line(/Installing signal handlers/)
      const began = performance.now()
      if (signals === 2) {
        daemon.process.kill('SIGINT')
        await daemon.line(/shutdownHandler sent cancel signal/)
      }
      expect(await daemon.stop('SIGTERM')).toBe(signals === 2 ? 'SIGTERM' : 'SIGKILL')
      // The log shows who ended the process: weftd logs a line if its own limit did.
      expect(daemon.lines.some((line) => line.includes('Stopping took longer than 9 s'))).toBe(signals === 1)
      if (signals === 1) expect(performance.now() - began).toBeGreaterThan(9_000)
    }
  })

  it('does not wait for a hanging lease directory and exits with 0, both before the lease and as a node', async () => {
    const folder = leaseDirectory()
    const lock = openSync(join(folder, 'lock'), 'w')
    await addon.lockFile(lock)
    const first = host.startDaemon({ args: ['--lease-dir', folder] })
    await first.line(/Picking subnet/)
    expect(await first.stop('SIGTERM')).toBe(0)
    closeSync(lock)

    const daemon = host.startDaemon({ args: ['--lease-dir', folder] })
    await daemon.line(/Running backend/)
    // Opening one of these pipes waits, like opening a file on a dead server.
    await host.output(['sh', '-c', `cd ${folder} && rm -f lock config && mkfifo lock config`])
    for (const name of readdirSync(join(folder, 'subnets'))) rmSync(join(folder, 'subnets', name))
    rmSync(host.subnetFile)
    await eventually(() => expect(existsSync(host.subnetFile)).toBe(true))
    expect(await daemon.stop('SIGTERM')).toBe(0)
    expect(daemon.lines.some((line) => line.includes('Stopping took longer'))).toBe(false)
  })
})

describe('weftd', () => {
  it('continues after the reader of its log has gone', async () => {
    const command = [
      'sh',
      '-c',
      '"$@" 2>&1 | head -n 1',
      'sh',
      process.execPath,
      weftd,
      '--subnet-file',
      host.subnetFile,
      ...withLeases(),
    ]
    const shell = host.spawn(command)
    await expect.poll(() => existsSync(host.subnetFile)).toBe(true)
    expect(await host.output(['ip', 'route', 'show', '10.5.0.0/16'])).toContain('dev flannel0')
    expect(shell.exitCode).toBeNull()
  })

  it('prints its version and its help to stderr and exits with 0', async () => {
    const version = await execute([process.execPath, weftd, '--version'])
    const own = (JSON.parse(readFileSync(join(packageRoot, 'package.json'), 'utf8')) as { version: string }).version
    expect([version.code, version.stderr.trim()]).toEqual([0, own])
    const help = await execute([process.execPath, weftd, '-h'])
    expect(help.code).toBe(0)
    expect(help.stderr).toMatch(/^Usage: .*weftd \[OPTION\]\.\.\.\n {2}-etcd-cafile string\n/)
    expect(help.stderr).toContain("weft's own:\n  -engine string")
  })
})
