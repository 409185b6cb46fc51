// running.ts - finds the weftd and flanneld processes that run on this host.

import { closeSync, openSync } from 'node:fs'
import { addon } from '../../host/addon.ts'
import { listDaemons } from '../../host/daemons.ts'
import type { HostKernel } from '../../host/kernel.ts'
import { findDevices } from '../../path/device/flannel-devices.ts'

/**
 * Describes the weftd and flanneld processes in this network namespace, except this process and the process with the
 * PID `except`.
 */
export async function findDaemons(proc = '/proc', except?: number): Promise<string[]> {
  const running = await listDaemons(proc)
  return running.filter(({ pid }) => pid !== except).map(({ name, pid }) => `${name} still runs (pid ${pid})`)
}

/**
 * Describes the weftd and flanneld processes that run. If no such process is visible, describes instead flannel's TUN
 * devices that a process has open.
 */
export async function findRunning(kernel: HostKernel, proc?: string, except?: number): Promise<string[]> {
  const running = await findDaemons(proc, except)
  if (running.length > 0) return running
  // In a container the processes of the host are not visible, but an open TUN device shows that a process uses the
  // device.
  const devices = (await findDevices(kernel)).filter(({ inUse }) => inUse)
  return devices.map(({ link }) => `a process still forwards through ${link.name}`)
}

/**
 * Describes the weftd that has locked the file `lock`, which a weftd locks while it runs; an empty list if the file is
 * not locked. So weft also notices a weftd in another PID namespace, whose process is not visible.
 */
export function findLocking(lock: string): string[] {
  let fd: number
  try {
    fd = openSync(lock, 'r+')
  } catch {
    return [] // the file does not exist, or this user may neither lock nor remove it
  }
  try {
    return addon.tryLockFile(fd) ? [] : [`a weftd still runs, which has locked ${lock}`]
  } finally {
    closeSync(fd) // releases the lock
  }
}
