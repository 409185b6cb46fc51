// native-engine.ts - the data path in C++ threads (native/): starting it, reading its counters, stopping it.

import { addon } from '../host/addon.ts'
import type { Engine, EngineConfig } from './engine.ts'
import { engineStartError } from './start-error.ts'

/** Asked for in native/io/udp.h. */
const WANTED_RECEIVE_BUFFER_BYTES = 16 * 1024 * 1024

export interface NativeOptions {
  /** One packet for each system call in one thread, as flanneld does. */
  readonly naive?: boolean
  readonly workers?: number
  /** Kernel features not to use, of `addon.featureNames`. */
  readonly without?: readonly string[]
}

/** Starts the native engine. Throws WeftError (NO_TUN, PERMISSION, PORT_IN_USE, ADDRESS, DEVICE). */
export function startNativeEngine(
  config: EngineConfig,
  { naive = false, workers = 1, without = [] }: NativeOptions = {},
): Engine {
  let reportFault: (error: Error) => void = () => {}
  const fault = new Promise<Error>((resolve) => {
    reportFault = resolve
  })
  const { encapsulation, tunAddress, networkAddress, tunName, bindAddress, port } = config
  const features = naive ? [] : addon.featureNames.filter((name) => !without.includes(name))
  let opened
  let native
  try {
    opened = addon.openDescriptors({ tunName, bindAddress, port, workers, features })
    const options = { encapsulation, tunAddress, networkAddress, naive, peers: new Uint8Array() }
    native = addon.runEngine(opened, options, (error) => reportFault(error))
  } catch (error) {
    throw engineStartError(error, config)
  }
  const notes: string[] = []
  if (opened.receiveBufferBytes < WANTED_RECEIVE_BUFFER_BYTES) {
    notes.push(
      `the UDP receive buffer is ${opened.receiveBufferBytes >> 10} KiB instead of ${WANTED_RECEIVE_BUFFER_BYTES >> 10}: ` +
        `bursts may be lost; raise net.core.rmem_max`,
    )
  }
  const refused = features.filter((name) => !opened.features.includes(name))
  if (refused.length > 0) notes.push(`the kernel does not offer ${refused.join(', ')}: slower, not less correct`)

  const names = addon.counterNames
  let stopped: Promise<void> | undefined
  return {
    kind: naive ? 'naive' : 'native',
    tunName: opened.tunName,
    get offloads() {
      return native.offloads
    },
    notes,
    fault,
    setPeers: (records) => native.setPeers(records),
    counters() {
      const sums: Record<string, bigint> = {}
      names.forEach((name, index) => {
        let sum = 0n
        for (let at = index; at < native.counters.length; at += names.length) sum += native.counters[at] ?? 0n
        sums[name] = sum
      })
      return sums
    },
    threads: () => native.askThreads(),
    stop: () => (stopped ??= native.stop()),
  }
}
