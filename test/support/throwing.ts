// throwing.ts - loaded into a weftd before its own code (`node --import`), makes the kind of callback that WEFT_THROW names throw once
// after SIGUSR2. The error names the callback, so that a test can check that it was thrown.

import childProcess from 'node:child_process'
import fs from 'node:fs'
import http from 'node:http'
import http2 from 'node:http2'
import { createRequire, syncBuiltinESMExports } from 'node:module'
import { packageRoot } from '../../lab/lab.ts'
import type * as Addon from '../../native/addon.d.ts'

type Function_ = (...args: never[]) => unknown
type Emitter = { readonly emit: (event: string, ...args: unknown[]) => boolean }

const kind = process.env['WEFT_THROW'] ?? ''
let isArmed = false

function strike(): void {
  if (!isArmed) return
  isArmed = false
  throw new Error(`thrown by a test: ${kind}`)
}

/** Returns the same function, which throws after its work once the error is due. */
const after =
  <F extends Function_>(callback: F) =>
  (...args: Parameters<F>): void => {
    callback(...args)
    strike()
  }

/** Makes an event of this name throw after its listeners have run, for emitters that match `matters`. */
function strikeOn<T extends object>(emitter: T, name: string, matters: (emitter: T) => boolean = () => true): void {
  const emit = Reflect.get(emitter, 'emit') as Emitter['emit']
  const throwing = function (this: T, event: string, ...args: unknown[]): boolean {
    const isHeard = Reflect.apply(emit, this, [event, ...args])
    if (event === name && matters(this)) strike()
    return isHeard
  }
  Object.assign(emitter, { emit: throwing })
}

/** Returns the same object that weftd gets. */
const addon = (): typeof Addon =>
  (createRequire(import.meta.url)('node-gyp-build') as (folder: string) => typeof Addon)(packageRoot)

/** The preparations that run before weftd starts. */
const PREPARE: Readonly<Record<string, () => void>> = {
  timer() {
    const set = globalThis.setTimeout
    Object.assign(globalThis, {
      setTimeout: (callback: () => void, ms?: number) => set(after(callback), ms),
    })
  },
  'health port': () => strikeOn(http.Server.prototype, 'request', (server) => typeof server.address() === 'object'),
  'status socket': () => strikeOn(http.Server.prototype, 'request', (server) => typeof server.address() === 'string'),
  'report of the kernel'() {
    const { watchNetlink } = addon()
    addon().watchNetlink = (protocol, groups, callback) => watchNetlink(protocol, groups, after(callback))
  },
  'end of a command'() {
    const execFile = childProcess.execFile as Function_
    childProcess.execFile = ((...args: unknown[]) =>
      Reflect.apply(execFile, childProcess, [
        ...args.slice(0, -1),
        after(args.at(-1) as Function_),
      ])) as typeof childProcess.execFile
  },
  'change of a file'() {
    const { watch } = fs
    fs.watch = ((path: string, callback: Function_) =>
      watch(path, after(callback) as fs.WatchListener<string>)) as typeof watch
  },
  'message of etcd'() {
    const { connect } = http2
    http2.connect = ((...args: Parameters<typeof connect>) => {
      const session = connect(...args)
      const request = session.request.bind(session)
      session.request = (...asked) => {
        const stream = request(...asked)
        strikeOn(stream, 'data')
        return stream
      }
      return session
    }) as typeof connect
  },
  'descriptor that is readable'() {
    const { watchReadable } = addon()
    addon().watchReadable = (fd, callback) => watchReadable(fd, after(callback))
  },
  'fault of the engine'() {
    const { runEngine } = addon()
    addon().runEngine = (on, options, callback) => runEngine(on, options, after(callback))
  },
  'listener for the stop'() {
    const abort = Reflect.get(AbortController.prototype, 'abort') as (reason?: unknown) => void
    AbortController.prototype.abort = function (reason) {
      if (isArmed) this.signal.addEventListener('abort', strike)
      Reflect.apply(abort, this, [reason])
    }
  },
}

/** Throws without a callback on SIGUSR2. */
const STRIKE: Readonly<Record<string, () => void>> = {
  'promise that nobody waits for': () => void Promise.resolve().then(strike),
  'error without a listener': () => void setImmediate(strike),
  'thousand errors': () =>
    void setInterval(() => {
      isArmed = true
      strike()
    }, 1),
}

PREPARE[kind]?.()
syncBuiltinESMExports()
process.on('SIGUSR2', () => {
  isArmed = true
  process.stderr.write('it will throw\n')
  STRIKE[kind]?.()
})
