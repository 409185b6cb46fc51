// undo.mjs - lets a script clean up when it ends, even if a signal interrupts the script.

const cleanups = new Set()

/**
 * Calls `cleanup` when this process ends. The returned function calls `cleanup` immediately, and then the end of the
 * process does not call `cleanup` again.
 */
export function undo(cleanup) {
  if (cleanups.size === 0) {
    process.once('exit', undoAll)
    for (const signal of SIGNALS) process.on(signal, interrupted)
  }
  cleanups.add(cleanup)
  return () => {
    if (!cleanups.delete(cleanup)) return
    cleanup()
    if (cleanups.size === 0) {
      process.off('exit', undoAll)
      for (const signal of SIGNALS) process.off(signal, interrupted)
    }
  }
}

const SIGNALS = ['SIGINT', 'SIGTERM', 'SIGHUP']
const undoAll = () => cleanups.forEach((cleanup) => cleanup())
const interrupted = () => process.exit(130)
