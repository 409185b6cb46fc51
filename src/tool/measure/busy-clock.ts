// busy-clock.ts - measures how much CPU time this process uses.

/**
 * Starts a clock. The returned function gives the fraction of a CPU core that this process has used since then, in user
 * and kernel mode.
 */
export function busyClock(): () => number {
  const [spent, start] = [process.cpuUsage(), performance.now()]
  return () => {
    const { user, system } = process.cpuUsage(spent)
    return (user + system) / 1000 / Math.max(1, performance.now() - start)
  }
}
