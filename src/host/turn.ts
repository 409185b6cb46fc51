// turn.ts - one thing after another, in the order in which it was asked for.

type Turn = <T>(work: () => Promise<T>) => Promise<T>

/** Work that is asked for begins when all that was asked for before has ended, however it ended. */
export function createTurn(): Turn {
  let last: Promise<unknown> = Promise.resolve()
  return (work) => {
    const done = last.then(work)
    last = done.catch(() => {})
    return done
  }
}
