// Promises of calls whose failure is never an unhandled rejection: if the caller does not await one, its error is
// reported instead.

class Answer<T> extends Promise<T> {
  _heard?: boolean;

  override then<A = T, B = never>(
    done?: ((value: T) => A | PromiseLike<A>) | null, failed?: ((reason: any) => B | PromiseLike<B>) | null,
  ): Promise<A | B> {
    this._heard = true;
    return super.then(done, failed);
  }
}

/**
 * Returns the promise of what `begin` starts; its error goes to `report` if no caller listens by the time it fails. One that
 * succeeds costs no more than an ordinary one.
 */
export function told<T>(report: (error: unknown) => void, begin: (done: (value: T | PromiseLike<T>) => void, failed: (error: unknown) => void) => void): Promise<T> {
  const answer: Answer<T> = new Answer<T>((resolve, reject) => {
    const failed = (error: unknown) => {
      reject(error);
      // In time, so that it never counts as unhandled.
      queueMicrotask(() => Promise.prototype.then.call(answer, undefined, () => answer._heard || report(error)));
    };
    try {
      begin(resolve, failed);
    } catch (error) {
      failed(error);
    }
  });
  return answer;
}
