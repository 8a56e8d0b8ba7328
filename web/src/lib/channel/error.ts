import type { ErrorCode } from './types'

/** What a request, a pairing or a stream failed with. `message` is for the person. */
export class ChannelError extends Error {
  readonly code: ErrorCode

  constructor(code: ErrorCode, message: string) {
    super(message)
    this.name = 'ChannelError'
    this.code = code
  }
}
