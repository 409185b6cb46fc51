// numbered-flows.ts - sends flows of numbered UDP datagrams between two containers, some longer than the path MTU, and counts the
// datagrams that arrive out of order.

import { createInterface } from 'node:readline'
import { ended } from '../../lab/command.ts'
import type { Place } from '../../lab/lab.ts'

/** A flow: its destination address and port, and the sizes of its datagrams in turn, in bytes. */
export interface Flow {
  readonly to: string
  readonly port: number
  readonly sizes: readonly number[]
  /** The source address; the kernel chooses it if this is missing. */
  readonly from?: string
}

interface Arrived {
  readonly received: number
  /** The number of datagrams that arrived after a later datagram of their flow, and the greatest distance between two such datagrams. */
  readonly late: number
  readonly latest: number
  readonly twice: number
}

const FAMILY = `
import json, select, socket, struct, sys, time
flows = json.loads(sys.argv[1])
END = 0xffffffff
def opened(address):
    s = socket.socket(socket.AF_INET6 if ':' in address else socket.AF_INET, socket.SOCK_DGRAM)
    s.setsockopt(socket.SOL_SOCKET, 33, 8 << 20)  # SO_RCVBUFFORCE: on a slow machine the receiver reads late
    if ':' not in address:
        s.setsockopt(socket.IPPROTO_IP, 10, 0)  # IP_MTU_DISCOVER: IP_PMTUDISC_DONT
    return s
`
const RECEIVE = `${FAMILY}
seen = {}
for flow in flows:
    s = opened(flow['to'])
    s.bind((flow['to'], flow['port']))
    seen[s] = {'flow': flow, 'last': -1, 'received': 0, 'late': 0, 'latest': 0, 'numbers': set(), 'twice': 0, 'ended': False}
print('listening', flush=True)
while not all(one['ended'] for one in seen.values()):
    for s in select.select(list(seen), [], [])[0]:
        number, = struct.unpack_from('!I', s.recv(65536))
        one = seen[s]
        if number == END:
            one['ended'] = True
            continue
        one['received'] += 1
        one['twice'] += number in one['numbers']
        one['numbers'].add(number)
        if number < one['last']:
            one['late'] += 1
            one['latest'] = max(one['latest'], one['last'] - number)
        one['last'] = max(one['last'], number)
print(json.dumps([{key: one[key] for key in ('received', 'late', 'latest', 'twice')} for one in seen.values()]), flush=True)
`
/** A program that sends bursts of 20 datagrams, of each flow in turn, and then repeats an end marker until it is killed. */
const SEND = `${FAMILY}
count, burst = int(sys.argv[2]), 20
sockets = []
for flow in flows:
    s = opened(flow['to'])
    if 'from' in flow:
        s.bind((flow['from'], 0))
    s.connect((flow['to'], flow['port']))
    sockets.append(s)
for start in range(0, count, burst):
    for s, flow in zip(sockets, flows):
        for number in range(start, min(count, start + burst)):
            s.send(struct.pack('!I', number).ljust(flow['sizes'][number % len(flow['sizes'])], b'.'))
    time.sleep(0.001)  # paces the bursts, so that no queue overflows
print('sent', flush=True)
while True:
    time.sleep(0.05)  # paces the end markers, of which some may be lost
    for s in sockets:
        try:
            s.send(struct.pack('!I', END))
        except OSError:
            pass  # nobody listens any more
`

/** Sends `count` datagrams of each flow; resolves with the arrivals of each flow. Calls `sent` when all datagrams are sent. */
export async function numberedFlows(
  from: Pick<Place, 'spawn'>,
  to: Pick<Place, 'spawn'>,
  flows: readonly Flow[],
  count: number,
  sent: () => unknown = () => {},
): Promise<readonly Arrived[]> {
  const receiver = to.spawn(['python3', '-c', RECEIVE, JSON.stringify(flows)])
  const lines = createInterface({ input: receiver.stdout! })[Symbol.asyncIterator]()
  const line = async (): Promise<string> => {
    const { value, done } = await lines.next()
    if (done === true) throw new Error('the receiver of numbered flows ended')
    return value
  }
  await line()
  const sender = from.spawn(['python3', '-c', SEND, JSON.stringify(flows), String(count)])
  createInterface({ input: sender.stdout! }).once('line', () => void sent())
  const arrived = JSON.parse(await line()) as readonly Arrived[]
  sender.kill('SIGKILL')
  await Promise.all([ended(sender), ended(receiver)])
  return arrived
}
