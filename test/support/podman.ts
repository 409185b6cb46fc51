// podman.ts - container images on hosts of the lab, run by podman and runc with their own storage and the command of docs/docker.md. That
// command sets the limits that Kubernetes also sets: a read-only root, one capability, and the default seccomp filter.

import { mkdirSync, readFileSync, writeFileSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { createInterface } from 'node:readline'
import { expect } from 'vitest'
import { execute, executeSync, output, type Finished } from '../../lab/command.ts'
import { packageRoot, type Host, type Pod } from '../../lab/lab.ts'
import { reach } from '../../lab/measure.ts'

const NET_ADMIN = 1n << 12n

/** On some kernels podman never stops waiting, also with --attach, so this file does not use it to wait. */
export interface Podman {
  /** The folder with podman's storage. */
  readonly folder: string
  /** Returns the arguments of a podman command. */
  readonly command: (...args: readonly string[]) => string[]
  /** Runs a podman command, and returns its stdout. */
  readonly run: (...args: readonly string[]) => Promise<string>
}

/** The options of `docker run` in docs/docker.md. */
const runOptions = /^docker run ((?:.*\\\n)*.*) weft /m
  .exec(readFileSync(join(packageRoot, 'docs/docker.md'), 'utf8'))![1]!
  .split(/[\s\\]+/)
  .filter(Boolean)

/** Some roots may not raise that limit (CAP_SYS_RESOURCE). Then the containers start without it, and a line is printed. */
const mayRaiseNice = executeSync(['sh', '-c', 'prlimit --nice=40 true 2>&1 && echo yes']).endsWith('yes\n')

/** Gives podman its own storage, configuration and locks below `folder`. */
export function isolatePodman(folder: string): Podman {
  mkdirSync(folder)
  const quoted = (name: string): string => JSON.stringify(join(folder, name))
  writeFileSync(
    join(folder, 'storage.conf'),
    `[storage]\ndriver = "vfs"\ngraphroot = ${quoted('graph')}\nrunroot = ${quoted('run')}\n`,
  )
  writeFileSync(
    join(folder, 'containers.conf'),
    [
      '[containers]',
      // Podman's default limits exceed those of a machine without CAP_SYS_RESOURCE.
      'default_ulimits = ["nofile=1024:1024", "nproc=4096:4096"]',
      '[engine]',
      'cgroup_manager = "cgroupfs"',
      'events_logger = "file"',
      'lock_type = "file"',
      'runtime = "runc"',
      `static_dir = ${quoted('libpod')}`,
      `tmp_dir = ${quoted('tmp')}`,
      `volume_path = ${quoted('volumes')}`,
      '',
    ].join('\n'),
  )
  const command = (...args: readonly string[]): string[] => [
    'env',
    `CONTAINERS_CONF=${join(folder, 'containers.conf')}`,
    `CONTAINERS_STORAGE_CONF=${join(folder, 'storage.conf')}`,
    `TMPDIR=${folder}`,
    'podman',
    ...args,
  ]
  return { folder, command, run: (...args) => output(command(...args), { timeoutMs: 20 * 60_000 }) }
}

interface Container {
  readonly pid: string
  /** Returns the value of a field of /proc/PID/status. */
  readonly status: (field: string) => string
  /** Returns the container's log. */
  log(): Promise<string>
  /** Resolves when its log has these words; rejects if it ended before. */
  logged(words: string): Promise<void>
  /** Runs a program in the container. */
  run(...command: string[]): Promise<Finished>
  /** Stops the container like Docker, and returns its last state. */
  stop(): Promise<string>
}

/** Starts a container with the command of docs/docker.md on a host of the lab, with another folder for /run/flannel. */
export async function startContainer(
  { command, run }: Podman,
  image: string,
  host: Host,
  name: string,
  args: readonly string[],
  options: readonly string[],
): Promise<Container> {
  const flannel = '/run/flannel:/run/flannel'
  expect(runOptions).toContain(flannel)
  expect(runOptions[runOptions.indexOf('--ulimit') + 1]).toBe('nice=40')
  if (!mayRaiseNice) process.stdout.write("  without --ulimit nice=40: this machine's root may not raise it\n")
  const given = runOptions
    // Otherwise a container that was killed with the test would start again.
    .filter((option) => !option.startsWith('--restart'))
    .filter((option, at, all) => mayRaiseNice || !(option === '--ulimit' || all[at - 1] === '--ulimit'))
    .map((option) => (option === flannel ? `${dirname(host.subnetFile)}:/run/flannel` : option))
    .map((option) => (option === 'weftd' ? name : option))
  // Returns to the mount namespace with the cgroups, which `ip netns exec` hides. Podman's mounts end with the container.
  const outside = ['nsenter', `--mount=/proc/${process.pid}/ns/mnt`, 'unshare', '--mount']
  const id = (
    await host.output([...outside, ...command('run', ...given, ...options, image, '--ip-masq', ...args)])
  ).trim()
  const pid = (await run('inspect', '--format', '{{.State.Pid}}', id)).trim()
  const log = async (): Promise<string> => (await execute(command('logs', id))).stderr
  return {
    pid,
    status: (field) => new RegExp(`^${field}:\t(\\S+)`, 'm').exec(readFileSync(`/proc/${pid}/status`, 'utf8'))![1]!,
    log,
    async logged(words) {
      const follower = host.spawn([...outside, ...command('logs', '--follow', id)])
      for await (const line of createInterface({ input: follower.stderr! }))
        if (line.includes(words)) return void follower.kill('SIGKILL')
      throw new Error(`the container ended:\n${await log()}`)
    },
    run: (...words) => execute(['nsenter', '--target', pid, '--mount', '--pid', '--net', ...words]),
    async stop() {
      await run('stop', id)
      const code = (await run('inspect', '--format', '{{.State.Status}} {{.State.ExitCode}}', id)).trim()
      await run('rm', id)
      return code
    },
  }
}

/** Runs containers on two hosts with that command, checks their privileges against it, and that the pods of the hosts reach each other. */
export async function exchangeByContainers(
  podman: Podman,
  image: string,
  hosts: readonly Host[],
  names: string,
  args: readonly string[],
  options: readonly string[],
): Promise<void> {
  const start = (host: Host): Promise<Container> =>
    startContainer(podman, image, host, `${names}-${host.name}`, args, options)
  const containers = await Promise.all(hosts.map(start))
  await Promise.all(containers.map((container) => container.logged('flannel is ready')))

  for (const { pid, status } of containers) {
    expect(readFileSync(`/proc/${pid}/cmdline`, 'utf8').replaceAll('\0', '')).toBe('flanneld')
    for (const set of ['CapPrm', 'CapEff', 'CapBnd']) expect(BigInt(`0x${status(set)}`), set).toBe(NET_ADMIN)
    expect(status('NoNewPrivs')).toBe('1')
    expect(status('Seccomp')).toBe('2')
    // The root is mounted read-only, so the daemon writes only to its volumes.
    expect(readFileSync(`/proc/${pid}/mounts`, 'utf8')).toMatch(/^\S+ \/ \S+ ro\b/m)
  }
  for (const host of hosts) {
    expect(readFileSync(host.subnetFile, 'utf8')).toMatch(
      /^FLANNEL_NETWORK=10\.5\.0\.0\/16\nFLANNEL_SUBNET=10\.5\.\d+\.1\/24\nFLANNEL_MTU=1472\nFLANNEL_IPMASQ=true\n$/,
    )
    const rules = await host.output(['iptables-save'])
    for (const chain of ['POSTRTG', 'FWD']) expect(rules).toContain(`-A FLANNEL-${chain} `)
  }

  const [first, second] = (await Promise.all(hosts.map((host) => host.startPod()))) as [Pod, Pod]
  await reach(first.namespace, second.address)
  await reach(second.namespace, first.address)

  for (const container of containers) {
    const { code, stderr } = await container.run('weft', 'cleanup')
    expect(stderr).toContain('flanneld still runs (pid 1)')
    expect(code).toBe(1)
    expect((await container.log()).split('\n').filter((line) => /^[EF]\d/.test(line))).toEqual([])
    expect(await container.stop()).toBe('exited 0')
  }
}
