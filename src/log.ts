// log.ts - what the rest of weft writes its log to; `createLog` is winston with klog's line format.

export interface Log {
  info(message: string): void
  warn(message: string): void
  error(message: string): void
  /** Whether messages of this verbosity are wanted (klog's -v). */
  v(level: number): boolean
}
