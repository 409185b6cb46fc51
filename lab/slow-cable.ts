// slow-cable.ts - delays all frames to and from a simulated host, without the kernel's netem, which some kernels lack.
// Two TAP devices replace the host's port on the switch, and a program copies frames between them after a delay. Before
// a frame reaches a TAP device, the kernel splits superpackets and completes checksums.

import { once } from 'node:events'
import { createInterface } from 'node:readline'
import { ended } from './command.ts'
import type { Lab } from './lab.ts'

const PROGRAM = `
import collections, fcntl, os, select, struct, sys, time
def tap(name):
    fd = os.open('/dev/net/tun', os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(fd, 0x400454ca, struct.pack('16sH', name.encode(), 0x1002))  # TUNSETIFF: IFF_TAP, IFF_NO_PI
    return fd
delay, taps = float(sys.argv[1]) / 1000, [tap(name) for name in sys.argv[2:4]]
print('ready', flush=True)
waiting = collections.deque()
while True:
    left = max(0, waiting[0][0] - time.monotonic()) if waiting else None
    for fd in select.select(taps, [], [], left)[0]:
        waiting.append((time.monotonic() + delay, taps[1 - taps.index(fd)], os.read(fd, 65536)))
    while waiting and waiting[0][0] <= time.monotonic():
        _, fd, frame = waiting.popleft()
        try:
            os.write(fd, frame)
        except OSError:
            pass  # the device is down for a moment
`

/**
 * Delays all frames to and from host `number` by `delayMs` in each direction. Resolves with a function that removes the
 * delay.
 */
export async function slowCable(lab: Lab, number: number, delayMs: number): Promise<() => Promise<void>> {
  const [port, near, far, bridge] = [`h${number}`, `slow${number}`, `far${number}`, `cable${number}`]
  const ip = (...words: string[]): Promise<string> => lab.switch.output(['ip', ...words])
  const program = lab.switch.spawn(['python3', '-c', PROGRAM, String(delayMs), near, far])
  if (!program.stdout) throw new Error('the program of the slow cable has no stdout')
  await Promise.race([
    once(createInterface({ input: program.stdout }), 'line'),
    ended(program).then(() => Promise.reject(new Error('the program of the slow cable ended'))),
  ])
  await ip('link', 'add', bridge, 'type', 'bridge')
  await ip('link', 'set', bridge, 'up')
  await ip('link', 'set', near, 'master', bridge, 'up')
  await ip('link', 'set', far, 'master', 'br0', 'up')
  await ip('link', 'set', port, 'master', bridge)
  return async () => {
    await ip('link', 'set', port, 'master', 'br0')
    program.kill('SIGKILL')
    await ended(program)
    await ip('link', 'del', bridge)
  }
}
