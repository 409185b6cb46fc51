// systemd.ts - a real systemd as the first process of its own namespaces, on a host of the lab, with the unit of deploy/; or the systemd of
// a Debian in a folder, with that Debian's units.
//
// It has its own cgroup, /run and unit folders, and no unit except weftd's, so this machine is not changed.

import { spawnSync } from 'node:child_process'
import { existsSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { execute, type Finished } from '../../lab/command.ts'
import { packageRoot, type Host } from '../../lab/lab.ts'
import { eventually } from './event.ts'

const SYSTEMD = '/lib/systemd/systemd'
/** systemd needs cgroups version 2, which some machines mount elsewhere or not at all. */
const MOUNT_CGROUPS = `
mount --make-rprivate /
if mountpoint --quiet /sys/fs/cgroup; then umount --recursive /sys/fs/cgroup; fi
mount -t cgroup2 cgroup2 /sys/fs/cgroup`

export const hasSystemd =
  existsSync(SYSTEMD) && spawnSync('unshare', ['--mount', 'sh', '-ec', MOUNT_CGROUPS]).status === 0

/** Joins a cgroup of its own first, so that its cgroup namespace starts there. Ends those whose lab was killed. */
const ENTER = `
${MOUNT_CGROUPS}
for old in /sys/fs/cgroup/weft-*; do
  owner=\${old#*/weft-}
  if [ -d "$old" ] && [ ! -d "/proc/\${owner%%-*}" ]; then find "$old" -depth -type d -exec rmdir {} + || true; fi
done
mkdir "/sys/fs/cgroup/$0"
echo 0 > "/sys/fs/cgroup/$0/cgroup.procs"
exec unshare --cgroup sh -ec "$1" "$0" "$2" "$3" "$4"`

const BOOT = `
umount /sys/fs/cgroup
mount -t cgroup2 cgroup2 /sys/fs/cgroup
mount -t proc proc /proc
for folder in /run /etc/default /etc/systemd/system /usr/lib/systemd/system /usr/lib/systemd/system-generators \
  /usr/lib/systemd/system-environment-generators /var/log /var/lib/systemd /opt; do
  if [ -d $folder ]; then mount -t tmpfs tmpfs $folder; fi
done
# Where the unit's ProtectHome and PrivateTmp do not hide them.
mkdir /opt/weft
mount --bind "$1" /opt/weft
touch /opt/node
mount --bind "$2" /opt/node
units=/etc/systemd/system
for name in basic sysinit shutdown network-online multi-user; do
  printf '[Unit]\\nDefaultDependencies=no\\n' > $units/$name.target
done
cp /opt/weft/deploy/weftd.service $units
mkdir $units/weftd.service.d
printf %s "$3" > $units/weftd.service.d/test.conf
exec env -i container=weft PATH="$PATH" ${SYSTEMD} --system --unit=multi-user.target --show-status=no`

/** The Debian's folder is the root, and the other folder is /srv in it. Its systemd may mount anything on /tmp. */
const BOOT_DEBIAN = `
umount /sys/fs/cgroup
mount --bind "$1" "$1"
mkdir -p "$1/old"
mount --bind "$2" "$1/srv"
mount --rbind /dev "$1/dev"
mount -t proc proc "$1/proc"
mount -t sysfs sysfs "$1/sys"
mount -t cgroup2 cgroup2 "$1/sys/fs/cgroup"
mount -t tmpfs tmpfs "$1/run"
cd "$1"
pivot_root . old
umount --lazy /old
exec env -i container=weft PATH=/usr/sbin:/usr/bin:/sbin:/bin ${SYSTEMD} --system --unit=multi-user.target --show-status=no`

export interface Systemd {
  /** Runs systemctl and returns its stdout. */
  systemctl(...args: string[]): Promise<string>
  /** Runs a command in the namespaces of the units, in which the clone is /opt/weft. */
  run(...command: string[]): Promise<Finished>
  /** Returns a property of weftd's unit, such as `ActiveState`. */
  property(name: string): Promise<string>
  /** Returns weftd's pid outside of the namespaces. */
  mainPid(): Promise<number>
  /** Reads a file as the units see it. */
  read(path: string): string | undefined
  close(): Promise<void>
}

/** Boots systemd on the host. The unit is installed but not started; a drop-in has these lines in its [Service] section. */
export function bootSystemd(host: Host, lines: readonly string[]): Promise<Systemd> {
  const dropIn = ['[Service]', 'ExecStart=', 'ExecStart=/opt/node /opt/weft/bin/weftd', ...lines, ''].join('\n')
  return boot(host, BOOT, packageRoot, process.execPath, dropIn)
}

/** Boots the systemd of a Debian in a folder, with the other folder as /srv. */
export const bootDebian = (host: Host, debian: string, folder: string): Promise<Systemd> =>
  boot(host, BOOT_DEBIAN, debian, folder)

async function boot(host: Host, script: string, ...given: readonly string[]): Promise<Systemd> {
  const cgroup = host.namespace
  const child = host.spawn([
    'unshare',
    '--mount',
    '--pid',
    '--uts',
    '--ipc',
    '--fork',
    '--kill-child',
    'sh',
    '-ec',
    ENTER,
    cgroup,
    script,
    ...given,
  ])
  child.stdout?.resume()
  child.stderr?.pipe(process.stderr)
  let first = ''
  const inside = (...command: string[]): Promise<Finished> =>
    execute(['nsenter', '--target', first, '--all', ...command])
  const root = (path: string): string => `/proc/${first}/root${path}`
  const systemd: Systemd = {
    async systemctl(...args) {
      const { code, stdout, stderr } = await inside('systemctl', '--no-pager', ...args)
      if (code !== 0) throw new Error(`systemctl ${args.join(' ')} ended with ${code}: ${stderr.trim()}`)
      return stdout.trim()
    },
    run: inside,
    property: (name) => systemd.systemctl('show', 'weftd', '--value', '--property', name),
    async mainPid() {
      const main = await systemd.property('MainPID')
      const pids = readFileSync(root('/sys/fs/cgroup/system.slice/weftd.service/cgroup.procs'), 'utf8').split('\n')
      // proc_pid_status(5): NSpid ends with the id in the innermost namespace.
      const isMain = (pid: string): boolean =>
        existsSync(`/proc/${pid}`) &&
        /^NSpid:.*\t(\d+)$/m.exec(readFileSync(`/proc/${pid}/status`, 'utf8'))?.[1] === main
      const pid = pids.filter(Boolean).find(isMain)
      if (pid === undefined) throw new Error(`process ${main} is not among ${pids.join(' ')}`)
      return Number(pid)
    },
    read: (path) => (existsSync(root(path)) ? readFileSync(root(path), 'utf8') : undefined),
    async close() {
      child.kill('SIGKILL')
      // The cgroups are empty when the last process of the namespace has ended.
      const remove = `${MOUNT_CGROUPS}\n[ ! -d "$0" ] || find "$0" -depth -type d -exec rmdir {} +`
      await eventually(async () => {
        const { code } = await execute(['unshare', '--mount', 'sh', '-ec', remove, join('/sys/fs/cgroup', cgroup)])
        if (code !== 0) throw new Error(`the cgroup ${cgroup} cannot be removed`)
      })
    },
  }
  try {
    await eventually(async () => {
      first = readFileSync(`/proc/${child.pid}/task/${child.pid}/children`, 'utf8').trim()
      if (first === '' || (await inside('systemctl', 'is-active', 'multi-user.target')).stdout !== 'active\n')
        throw new Error('systemd did not boot')
    })
  } catch (error) {
    await systemd.close()
    throw error
  }
  return systemd
}
