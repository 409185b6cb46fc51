// undo.mjs - what a script is to undo at its end, also when it is interrupted.

const cleanups = new Set()

/** Undoes it when this process ends, or when the function that this returns is called. */
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
