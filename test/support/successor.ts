// successor.ts - a test's own successor, which connects to the weftd of a host and requests a hand-over.

import { EVENT_MS, type Host } from '../../lab/lab.ts'
import { connect } from '../../src/host/unix-socket.ts'

export async function meet(host: Host) {
  const connection = connect(`${host.subnetFile}.handover`)!
  const ask = async (want: string) => {
    connection.send(JSON.stringify({ weft: 2, want }))
    return (await connection.receive(AbortSignal.timeout(EVENT_MS)))!
  }
  return { connection, ask, about: JSON.parse((await ask('meet')).text) as Record<string, unknown> }
}
