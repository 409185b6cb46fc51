// turn.ts - runs asynchronous work in sequence.

type Turn = <T>(work: () => Promise<T>) => Promise<T>

/**
 * Makes a function that runs asynchronous work in sequence: each work starts when all earlier work has ended or failed.
 */
export function createTurn(): Turn {
  let last: Promise<unknown> = Promise.resolve()
  return (work) => {
    const done = last.then(work)
    last = done.catch(() => {})
    return done
  }
}
