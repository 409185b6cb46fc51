// model-refusal.ts - the refusal of a change by the model kernel (model-kernel.ts).

export class Refused extends Error {
  readonly errno: string
  readonly explanation: string | undefined

  constructor(errno: string, explanation?: string) {
    super(errno)
    this.errno = errno
    this.explanation = explanation
  }
}
