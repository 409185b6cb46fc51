// session-clock.ts - the clock of WireGuard's sessions, in ms. Like the clock of the engine's sessions (session_ms in
// native/io/clock.h), this clock continues while the host is suspended, and is the same for all processes of a host.

import { addon } from '../../../host/addon.ts'

export const sessionClock = (): number => addon.sessionMs()
