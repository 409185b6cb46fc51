// running.ts - finds running weftd and flanneld processes.

import type { Run } from '../../host/command.ts'
import { listDaemons } from '../../host/daemons.ts'
import { findDevices } from '../../path/device/flannel-devices.ts'

/** Describes the weftd and flanneld processes in this network namespace, except this process and `except`. */
export async function findDaemons(proc = '/proc', except?: number): Promise<string[]> {
  const running = await listDaemons(proc)
  return running.filter(({ pid }) => pid !== except).map(({ name, pid }) => `${name} still runs (pid ${pid})`)
}

/** Describes the running daemons; if there are none, the devices through which some process forwards. */
export async function findRunning(run: Run, proc?: string, except?: number): Promise<string[]> {
  const running = await findDaemons(proc, except)
  if (running.length > 0) return running
  // A container does not see the processes of the host, but it sees whether a device is in use.
  const devices = (await findDevices(run)).filter(({ inUse }) => inUse)
  return devices.map(({ name }) => `a process still forwards through ${name}`)
}
