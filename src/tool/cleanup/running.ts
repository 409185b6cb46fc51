// running.ts - finds the weftd and flanneld processes that run on this host.

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
