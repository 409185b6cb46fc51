// busy-clock.ts - how much of a core this process takes.

/** The part of a core, 1 for a whole one, that this process has taken since then, the kernel's work for it included. */
export function busyClock(): () => number {
  const [spent, start] = [process.cpuUsage(), performance.now()]
  return () => {
    const { user, system } = process.cpuUsage(spent)
    return (user + system) / 1000 / Math.max(1, performance.now() - start)
  }
}
